"""Jobs of a running flow: `gather` enqueues jobs and waits for them, `add` adds jobs to its own group."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.client.flows.build import link_of
from penstock.client.job_call import JobCall
from penstock.core import errors
from penstock.core.flow import FLOW_ABANDONED, FlowInfo, FlowPolicy, NewFlow, NewNode
from penstock.core.ids import mint
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.relations import FlowMember
from penstock.core.step_names import Identity
from penstock.stores.contract import FLOW_STEP, Enqueued, EnqueueStatus, FlowChange, StoredStep
from penstock.workflows.asked import asked_of_jobs
from penstock.workflows.scopes import Use
from penstock.workflows.step_memory import StepPlan, VerbCall
from penstock.workflows.step_run import SHORT_WAIT, StepRun

#: The most jobs of one gather: their ids are one step of the flow.
MOST_MEMBERS = 10_000
#: Time (ms) that a gather waits in its slot before it stores the flow of its jobs. From then on they are
#: cancelled with the running job.
_ALONE = 50
#: How often the jobs of a gather are brought back in one attempt of their job, after it was retried.
_RETRIES = 3
#: The results of the jobs of a gather are kept this long (ms), if the flow does not take them before.
_MEMBERS_KEPT = 30 * 86_400_000
#: A gather first looks for the ends of its jobs after these waits (ms), then each minute.
_LOOKS = (1_000, 2_000, 5_000, 15_000, 30_000, 60_000)
#: Header of a job with a given id that may serve others, too: the gather that has enqueued it.
_PARENT = "penstock-gather"
_TOO_LATE = "the running job is not a member of a group whose body still waits"


class _Member(NamedTuple):
    """A job of a gather. Its own are deleted after it; a job with a unique key may serve others, too.

    `node`: its number among those whose ends wake the flow; -1: the flow looks for its end.
    """

    queue: str
    id: str
    own: bool
    node: int = -1


class _Failed(msgspec.Struct):
    """The stored outcome of a gather some of whose jobs did not complete. Older releases stored it."""

    failed: list[str]
    of: int


_members_of = msgspec.json.Decoder(list[_Member]).decode


# ── gather ───────────────────────────────────────────────────────────────────────────────────────


def gather(
    run: StepRun, calls: Sequence[JobCall[Any]], key: str | None, changing: bool
) -> StepPlan[list[Any]]:
    """Enqueue jobs, wait for all of them, and return their results in order."""
    _check_members(calls)
    for call in calls:
        call.template.refuse_unless(call.template.client.store is run.access.store())
    memory, asked = run.memory, asked_of_jobs("gather", calls, changing)

    def body(use: Use) -> StepPlan[list[Any]]:
        found = memory.stored(use.key)
        if found is None:
            yield from run.reach()
            try:
                found = yield from _Gather(run, use.key, asked).answer(calls)
            except (errors.JobExists, errors.QueueClosed, errors.MemberFailed) as error:
                yield from run.failures.record(use, asked, error)
                raise
        value = memory.answer(found) or b"[]"
        if value.startswith(b"{"):  # of an older release
            failed = msgspec.json.decode(value, type=_Failed)
            raise _member_failed(failed.failed, failed.of)
        try:
            payloads = msgspec.json.decode(value, type=list[msgspec.Raw])
            return [call.template.codec.decode(bytes(one)) for call, one in zip(calls, payloads, strict=True)]
        except (errors.Undecodable, ValueError) as error:
            run.end_unreadable(use, error)

    return (yield from run.operate(Identity("gather", "", key, "gather!"), body, asked))


class _Gather:
    """A gather whose answer is not stored yet.

    `flow`: its nodes are the jobs of the gather; its end wakes the running job.
    """

    def __init__(self, run: StepRun, key: str, asked: str) -> None:
        self._run = run
        self._memory = run.memory
        self._job = run.attempt.job
        self._key = key
        self._asked = asked
        id = self._id("flow")
        name = f"gather of {self._job.task}"[:200]
        self._flow = NewFlow(
            id, self._job.queue, name, FlowPolicy.IGNORE, id, -1, retention=0, wakes=self._job.id
        )

    def answer(self, calls: Sequence[JobCall[Any]]) -> StepPlan[StoredStep]:
        """Enqueue the jobs unless an earlier run has, and store their results when all have completed."""
        members = yield from self._members(calls)
        refs = [Ref(one.queue, one.id) for one in members]
        ended = yield from self._ends(members, refs)
        failed = [ref.id for ref, job in zip(refs, ended, strict=True) if not _completed(job)]
        if failed:
            raise _member_failed(failed, len(refs))
        results = [msgspec.Raw((job.result if job is not None else None) or b"null") for job in ended]
        found = yield from self._memory.record_answer(self._key, self._asked, msgspec.json.encode(results))
        own = [ref for ref, one in zip(refs, members, strict=True) if one.own]
        if own:
            yield VerbCall("delete", (own,))
        return found

    # enqueue the jobs

    def _members(self, calls: Sequence[JobCall[Any]]) -> StepPlan[list[_Member]]:
        """The jobs, enqueued once; suspends the flow until their queues have room."""
        memory, key = self._memory, f"{self._key}!1"
        stored = memory.stored(key)
        if stored is None:
            jobs = self._with_nodes([self._new_job(n, call) for n, call in enumerate(calls)])
            given = {call.given_id for call in calls if call.given_id}
            members = (yield from self._enqueued(jobs, given)) if jobs else []
            stored = yield from memory.record_answer(key, self._asked, msgspec.json.encode(members))
        return _members_of(memory.answer(stored) or b"[]")

    def _new_job(self, n: int, call: JobCall[Any]) -> NewJob:
        id = call.given_id or self._id(str(n))
        new: NewJob = call.template.client.rewritten(call.template.new(id, call.payload))
        if call.given_id and _serves_others(new):
            new = replace(new, headers={**(new.headers or {}), _PARENT: self._id("")})
        return replace(new, retention=max(new.retention, _MEMBERS_KEPT))

    def _with_nodes(self, jobs: list[NewJob]) -> list[NewJob]:
        """The jobs, as nodes of the flow that wakes this one, except those that may serve others."""
        home, nodes = self._flow.ref, count()
        return [
            job if _serves_others(job) else replace(job, flow=FlowMember(home.queue, home.id, next(nodes)))
            for job in jobs
        ]

    def _enqueued(self, jobs: list[NewJob], given: set[str]) -> StepPlan[list[_Member]]:
        """Enqueue the jobs; a repeated call finds those that the store has, by their ids."""
        if given:
            yield from self._refuse_foreign([job for job in jobs if job.id in given])
        try:
            answers: list[Enqueued] = yield VerbCall("enqueue", (jobs,))
        except errors.EnqueueUnknown:
            yield from self._run.suspend(_LOOKS[0])
            raise
        members, wait = [], 0
        there = [
            job for job, answer in zip(jobs, answers, strict=True) if answer.status is EnqueueStatus.EXISTS
        ]
        if given.intersection(job.id for job in there):  # one may have come since
            yield from self._refuse_foreign([job for job in there if job.id in given])
        for job, answer in zip(jobs, answers, strict=True):
            match answer.status:
                case EnqueueStatus.CLOSED:
                    raise errors.QueueClosed(job.queue)
                case EnqueueStatus.FAILED:
                    raise errors.StoreUnavailable(f"the job {job.id} was not stored: {answer.cause}")
                case EnqueueStatus.FULL | EnqueueStatus.UNKNOWN:
                    wait = max(wait, min(answer.retry_after or _LOOKS[0], _LOOKS[-1]))
                case EnqueueStatus.DUPLICATE | EnqueueStatus.REPLACED:
                    members.append(_Member(job.queue, answer.id, False))
                case _:
                    node = -1 if job.flow is None else job.flow.node
                    members.append(_Member(job.queue, job.id, job.unique is None, node))
        if wait:
            yield from self._run.suspend(wait)
        return members

    def _refuse_foreign(self, jobs: Sequence[NewJob]) -> StepPlan[None]:
        """Raise JobExists if the store has a job with one of these ids that this gather has not enqueued.

        The first gather of a flow may have enqueued it under an older release, before it stored anything.
        """
        older = _id_of(self._job, "gather!", "flow")
        found: list[Job | None] = yield VerbCall("get", ([job.ref for job in jobs],))
        for job, there in zip(jobs, found, strict=True):
            if there is None or (there.spec.flow is not None and there.spec.flow.id == older):
                continue
            if _mark_of(there.spec) != _mark_of(job):
                raise errors.JobExists(job.queue, job.id)

    def _id(self, what: str) -> str:
        return _id_of(self._job, self._key, what)

    # wait for their ends

    def _ends(self, members: list[_Member], refs: list[Ref]) -> StepPlan[list[Job | None]]:
        """The jobs when all have ended: after a moment in the slot, or suspended."""
        ended: list[Job | None] = []
        watched, retries = False, 0
        while refs:
            timeout = SHORT_WAIT - _ALONE if watched else _ALONE
            ended = yield VerbCall("wait_for_end", (refs,), {"timeout": timeout})
            open_ = [
                one for one, job in zip(members, ended, strict=True) if job is not None and not job.ended
            ]
            if not open_:
                if retries == _RETRIES or not _abandoned(ended):
                    break
                retries += 1
                yield from self._bring_back()
            elif not watched:
                yield from self._watch(members)
                watched = True
            elif any(one.node < 0 for one in open_):
                yield from self._look_later()
            elif not (yield from self._is_over()):
                yield from self._run.suspend(self._memory.next_look(f"{self._key}!1"))
        return ended

    def _watch(self, members: list[_Member]) -> StepPlan[None]:
        """Have the ends of jobs wake this flow when all have ended.

        The nodes are stored before their flow starts: it starts with those that have ended meanwhile.
        """
        nodes = [NewNode(one.node, uses=0, ref=Ref(one.queue, one.id)) for one in members if one.node >= 0]
        for at in range(0, len(nodes), FLOW_STEP):
            yield VerbCall("put_flow", (self._flow, nodes[at : at + FLOW_STEP]), {"start": False})
        if nodes:
            yield VerbCall("put_flow", (self._flow, []), {"start": True})

    def _is_over(self) -> StepPlan[bool]:
        """Whether all jobs that `_watch` was given have ended."""
        (info,) = yield VerbCall("get_flows", ([self._flow.ref],))
        return info is None or info.ended

    def _bring_back(self) -> StepPlan[None]:
        """Run jobs again that were cancelled with this one, which was retried."""
        yield VerbCall("advance_flows", ())  # a flow brings back those whose end was counted
        yield VerbCall("change_flow", (self._flow.ref, FlowChange.RETRY))

    def _look_later(self) -> StepPlan[None]:
        """Suspend the flow until its next look. The number of looks is stored: their distance grows."""
        memory, key = self._memory, self._key
        looked = memory.count(f"{key}!") - 1
        if looked < len(_LOOKS):
            yield from memory.record(f"{key}!{looked + 2}", b"1")
        yield from self._run.suspend(_LOOKS[min(looked, len(_LOOKS) - 1)])


def _check_members(calls: Sequence[JobCall[Any]]) -> None:
    for call in calls:
        if not isinstance(call, JobCall):
            raise errors.FlowError(
                f"gather takes a list of task.job(...), not {call!r:.100}; nothing was stored"
            )
    if len(calls) > MOST_MEMBERS:
        raise errors.FlowError(
            f"gather of {len(calls):,} jobs: the limit is {MOST_MEMBERS:,}; nothing was stored. Gather lists "
            "of jobs one after the other"
        )
    ids = [call.given_id for call in calls if call.given_id]
    if len(set(ids)) < len(ids):
        raise errors.FlowError("gather of two jobs with the same id; nothing was stored")


def _id_of(job: Job, key: str, what: str) -> str:
    """An id that each run of this job gives to the same part of the gather with this key."""
    origin = f"{job.queue}/{job.id}/{job.generation}/{key}/{what}"
    return f"{job.id[:60]}.{hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()}"


def _serves_others(job: NewJob) -> bool:
    """Whether others may wait for this job, too, or it ends with a batch."""
    return job.unique is not None or job.batch_terms is not None


def _mark_of(job: NewJob) -> object:
    """What distinguishes a job of a gather from others."""
    return (job.headers or {}).get(_PARENT) if job.flow is None else job.flow


def _member_failed(ids: list[str], of: int) -> errors.MemberFailed:
    return errors.MemberFailed(f"{len(ids)} of {of} jobs did not complete: {', '.join(ids[:5])}", ids)


def _abandoned(jobs: Sequence[Job | None]) -> bool:
    """Whether some of these jobs were cancelled with the job that waited for them."""
    return any(job is not None and job.reason == FLOW_ABANDONED for job in jobs)


def _completed(job: Job | None) -> bool:
    return job is not None and job.state is State.COMPLETED


# ── add ──────────────────────────────────────────────────────────────────────────────────────────


def add(run: StepRun, calls: Sequence[Any], key: str | None, changing: bool) -> StepPlan[None]:
    """Add members to the group of the running job, once. Raises ConfigError if the job is part of no flow."""
    member = run.attempt.job.spec.flow
    if member is None:
        raise errors.ConfigError(
            "current_flow().add(): the running job is not part of a chain, group or chord"
        )
    return _add(run, member, calls, key, changing)


def _add(
    run: StepRun, member: FlowMember, calls: Sequence[Any], key: str | None, changing: bool
) -> StepPlan[None]:
    asked = asked_of_jobs("add", [call for call in calls if isinstance(call, JobCall)], changing)
    memory = run.memory

    def body(use: Use) -> StepPlan[None]:
        if memory.stored(use.key) is None:
            yield from run.reach()
            yield from _add_to_group(member, _jobs_to_add(run, member, calls), use.key)
            if not memory.older:
                yield from memory.record_answer(use.key, asked, b"null")

    yield from run.operate(Identity("add", "", key, "add!"), body, asked)


def _jobs_to_add(run: StepRun, member: FlowMember, calls: Sequence[Any]) -> list[NewJob]:
    links = [link_of(call) for call in calls]
    if not links or None in links:
        raise errors.ConfigError("current_flow().add() takes calls of tasks, as task.job(...)")
    made = [link.call for link in links if link is not None]
    for call in made:
        call.template.refuse_unless(call.template.client.store is run.access.store())
    client = made[0].template.client
    jobs = [client.rewritten(call.template.new(mint(), call.payload)) for call in made]
    place = FlowMember(member.queue, member.id, 0)  # the store sets the number
    return [replace(job, flow=place) for job in jobs]


def _add_to_group(member: FlowMember, jobs: list[NewJob], key: str) -> StepPlan[None]:
    """Add jobs to the group of this node; a repeated call with this key adds none.

    A later part is never too late: the body of the group waits for the running job, too.
    """
    flow = Ref(member.queue, member.id)
    join = yield from _open_join(flow, member.node)
    for at in range(0, len(jobs), FLOW_STEP):
        part = (flow, join, jobs[at : at + FLOW_STEP])
        info: FlowInfo | None = yield VerbCall("add_to_flow", part, {"key": f"{member.node}/{key}/{at}"})
        if info is None:
            raise errors.ConfigError(_TOO_LATE)


def _open_join(flow: Ref, node: int) -> StepPlan[int]:
    """The join behind this node that has no job yet. Raises ConfigError if there is none."""
    (own,) = yield VerbCall("flow_nodes", (flow, [node]))
    for join in () if own is None else own.next:
        (found,) = yield VerbCall("flow_nodes", (flow, [join]))
        if found is not None and found.job is None:
            number: int = join
            return number
    raise errors.ConfigError(_TOO_LATE)
