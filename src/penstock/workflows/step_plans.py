"""Steps, timers, waits, gathers and undoing, as plans over a `FlowMemory`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.app.outcome import outcome_of
from penstock.app.undoing import FAILED, UNDO_AFTER, can_be_undone, failure_of
from penstock.client.job_call import JobCall
from penstock.codec import ANY_RESULT, ResultCodec, result_codec_of
from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import (
    ConfigError,
    Discard,
    EnqueueUnknown,
    FlowError,
    FlowSuspended,
    Interrupted,
    MemberFailed,
    QueueClosed,
    ResultError,
    Steering,
    StoreUnavailable,
)
from penstock.core.flow import FLOW_ABANDONED, FlowPolicy, NewFlow, NewNode
from penstock.core.flow_member import FlowMember
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import decide
from penstock.core.text import text_of
from penstock.stores.contract import FLOW_STEP, Enqueued, EnqueueStatus, FlowChange, StoredStep
from penstock.workflows.flow_memory import (
    SHORT_WAIT,
    FlowMemory,
    Pause,
    Plan,
    StepsFailed,
    UserCall,
    VerbCall,
    checked_name,
)

__all__ = ["StepPlans"]

#: The largest result of one step (bytes).
LARGEST_STEP = 1024 * 1024
#: The most jobs of one gather: their ids are one step of the flow.
MOST_MEMBERS = 10_000
#: A gather keeps its slot for this long (ms) before its flow is stored, with which its jobs are cancelled if
#: its own job is.
_ALONE = 50
#: How often the jobs of a gather are brought back in one attempt of their job, after it was retried.
_RETRIES = 3
#: The results of the jobs of a gather are kept this long (ms), if the flow does not take them before.
_MEMBERS_KEPT = 30 * 86_400_000
#: A gather first looks for the ends of its jobs after these waits (ms), then each minute.
_LOOKS = (1_000, 2_000, 5_000, 15_000, 30_000, 60_000)


class _Member(NamedTuple):
    """A job of a gather; not its own if another job held its unique key.

    `node`: its number among those whose ends wake the flow; -1: the flow looks for its end.
    """

    queue: str
    id: str
    own: bool
    node: int = -1


class _Failed(msgspec.Struct):
    """The stored outcome of a gather some of whose jobs did not complete."""

    failed: list[str]
    of: int


_members_of = msgspec.json.Decoder(list[_Member]).decode


class StepPlans:
    """The operations of one flow, and its undo functions."""

    def __init__(self, memory: FlowMemory) -> None:
        self.memory = memory
        self._undo: list[tuple[str, Callable[..., Any], Any]] = []
        self._ended_with: BaseException | None = None

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def step(
        self,
        name: str,
        call: UserCall,
        undo: Callable[..., Any] | None,
        attempts: int,
        retry_delay: Duration,
    ) -> Plan[Any]:
        """Run a function once and remember its result."""
        name, memory = checked_name(name, "the name of a step"), self.memory
        if name in memory.active:
            raise FlowError(f"step {name!r} runs already: steps that run at once need names of their own")
        key, codec = memory.use(name), _codec_of(call.function, name)
        memory.active.add(name)
        try:
            yield from memory.begin()
            found = memory.stored(key)
            if found is None:
                memory.reach()
                if undo is not None:
                    yield from memory.note_undo()
                found = yield from self._run(key, call, codec, attempts, retry_delay)
            value = codec.decode(found.value or b"null")
            if undo is not None:
                self._undo.append((key, undo, value))
            return value
        finally:
            memory.active.discard(name)

    def _run(
        self, key: str, call: UserCall, codec: ResultCodec, attempts: int, retry_delay: Duration
    ) -> Plan[StoredStep]:
        memory = self.memory
        failed = memory.count(f"{key}!")
        while True:
            if failed:  # the failed try has stored when the next one is due
                due = memory.stored(f"{key}!{failed}")
                assert due is not None
                yield from memory.wait_until(int(due.value or b"0"))
            memory.check()
            try:
                value = yield call
                break
            except (Steering, FlowError):  # meant for the job
                raise
            except Exception:  # boundary: a user's function; its own retry decides
                failed += 1
                if failed >= attempts:
                    raise
            due_at = memory.now() + milliseconds(retry_delay, what="retry_delay")
            yield from memory.record(f"{key}!{failed}", b"%d" % due_at)
        return (yield from memory.record(key, _encoded(codec, value, key)))

    # ── waits ────────────────────────────────────────────────────────────────────────────────────

    def sleep(self, duration: Duration) -> Plan[None]:
        """Wait, over any number of restarts."""
        ms, memory = milliseconds(duration, what="sleep(duration)"), self.memory
        key = memory.use("sleep!")
        yield from memory.begin()
        found = memory.stored(key)
        if found is None:
            memory.reach()
            found = yield from memory.record(key, b"%d" % (memory.now() + ms))
        yield from memory.wait_until(int(found.value or b"0"))

    def wait_for(self, signal: str, key: str, timeout: Duration | None, codec: ResultCodec) -> Plan[Any]:
        """Wait for a signal and return its data; None after the timeout."""
        memory = self.memory
        step = memory.use(f"wait!{checked_name(signal, 'the name of a signal')}")
        yield from memory.begin()
        found = memory.stored(step)
        if found is None:
            memory.reach()
            found = yield from self._await(step, signal, key, timeout)
        return None if found.signal is None else codec.decode(found.value or b"null")

    def _await(self, step: str, signal: str, key: str, timeout: Duration | None) -> Plan[StoredStep]:
        memory, until = self.memory, None
        if timeout is not None:
            limit = memory.stored(f"{step}!until")
            if limit is None:
                due = memory.now() + milliseconds(timeout, what="wait_for(timeout=)")
                limit = yield from memory.record(f"{step}!until", b"%d" % due)
            until = int(limit.value or b"0")
        if until is not None and until <= memory.now():
            return (yield from memory.record(step, b""))  # or the signal that came first
        found = yield from memory.wait(step, signal, key)
        if found is None:
            look = memory.next_look(step)
            yield from memory.suspend(look if until is None else min(look, until - memory.now()))
        assert found is not None
        return found

    # ── child jobs ───────────────────────────────────────────────────────────────────────────────

    def gather(self, calls: Sequence[JobCall[Any]]) -> Plan[list[Any]]:
        """Enqueue jobs, wait for all of them, and return their results in order."""
        _check_members(calls)
        memory, key = self.memory, self.memory.use("gather!")
        yield from memory.begin()
        found = memory.stored(key)
        if found is None:
            memory.reach()
            found = yield from self._gathered(key, (yield from self._members(key, calls)))
        value = found.value or b"[]"
        if value.startswith(b"{"):
            raise _member_failed(msgspec.json.decode(value, type=_Failed))
        payloads = msgspec.json.decode(value, type=list[msgspec.Raw])
        return [call.template.codec.decode(bytes(one)) for call, one in zip(calls, payloads, strict=True)]

    def _members(self, key: str, calls: Sequence[JobCall[Any]]) -> Plan[list[_Member]]:
        """The jobs of a gather, enqueued once; suspends the flow until their queues have room."""
        stored = self.memory.stored(f"{key}!1")
        if stored is None:
            jobs = self._with_nodes(key, [self._member(key, n, call) for n, call in enumerate(calls)])
            members = (yield from self._enqueued(jobs)) if jobs else []
            stored = yield from self.memory.record(f"{key}!1", msgspec.json.encode(members))
        return _members_of(stored.value or b"[]")

    def _member(self, key: str, n: int, call: JobCall[Any]) -> NewJob:
        id = call.given_id or self._id_of(key, str(n))
        new = call.template.new(id, call.payload)
        if call.template.client is not None:  # with the headers of this job
            new = call.template.client.rewritten(new)
        return replace(new, retention=max(new.retention, _MEMBERS_KEPT))

    def _with_nodes(self, key: str, jobs: list[NewJob]) -> list[NewJob]:
        """The jobs, those that end by themselves as nodes of the flow that wakes this one."""
        home, nodes = self._watch_of(key).ref, count()
        return [
            job
            if job.unique is not None or job.batch_terms is not None
            else replace(job, flow=FlowMember(home.queue, home.id, next(nodes)))
            for job in jobs
        ]

    def _watch_of(self, key: str) -> NewFlow:
        """The flow whose nodes are the jobs of a gather; its end wakes this one."""
        job = self.memory.attempt.job
        id = self._id_of(key, "flow")
        name = f"gather of {job.task}"[:200]
        return NewFlow(id, job.queue, name, FlowPolicy.IGNORE, id, -1, retention=0, wakes=job.id)

    def _id_of(self, key: str, what: str) -> str:
        job = self.memory.attempt.job
        origin = f"{job.queue}/{job.id}/{job.generation}/{key}/{what}"
        return f"{job.id[:60]}.{hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()}"

    def _enqueued(self, jobs: list[NewJob]) -> Plan[list[_Member]]:
        """Enqueue jobs; when this comes again, the store has those of the same id."""
        try:
            answers: list[Enqueued] = yield VerbCall("enqueue", (jobs,))
        except EnqueueUnknown:
            yield from self.memory.suspend(_LOOKS[0])
            raise
        members, wait = [], 0
        for job, answer in zip(jobs, answers, strict=True):
            match answer.status:
                case EnqueueStatus.CLOSED:
                    raise QueueClosed(job.queue)
                case EnqueueStatus.FAILED:
                    raise StoreUnavailable(f"the job {job.id} was not stored: {answer.cause}")
                case EnqueueStatus.FULL | EnqueueStatus.UNKNOWN:
                    wait = max(wait, min(answer.retry_after or _LOOKS[0], _LOOKS[-1]))
                case EnqueueStatus.DUPLICATE | EnqueueStatus.REPLACED:
                    members.append(_Member(job.queue, answer.id, False))
                case _:
                    node = -1 if job.flow is None else job.flow.node
                    members.append(_Member(job.queue, job.id, True, node))
        if wait:
            yield from self.memory.suspend(wait)
        return members

    def _gathered(self, key: str, members: list[_Member]) -> Plan[StoredStep]:
        memory, refs = self.memory, [Ref(one.queue, one.id) for one in members]
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
                yield from self._bring_back(key)
            elif not watched:
                yield from self._watch(key, members)
                watched = True
            elif any(one.node < 0 for one in open_):
                yield from self._look_later(key)
            elif not (yield from self._is_over(key)):
                yield from memory.suspend(memory.next_look(f"{key}!1"))
        failed = [ref.id for ref, job in zip(refs, ended, strict=True) if not _completed(job)]
        if failed:
            return (yield from memory.record(key, msgspec.json.encode(_Failed(failed, len(refs)))))
        results = [msgspec.Raw((job.result if job is not None else None) or b"null") for job in ended]
        found = yield from memory.record(key, msgspec.json.encode(results))
        own = [ref for ref, one in zip(refs, members, strict=True) if one.own]
        if own:
            yield VerbCall("delete", (own,))
        return found

    def _bring_back(self, key: str) -> Plan[None]:
        """Run jobs again that were cancelled with this one, which was retried."""
        yield VerbCall("advance_flows", ())  # a flow brings back those whose end was counted
        yield VerbCall("change_flow", (self._watch_of(key).ref, FlowChange.RETRY))

    def _look_later(self, key: str) -> Plan[None]:
        """Suspend the flow until its next look; their number is stored, so that a long wait costs few."""
        memory = self.memory
        looked = memory.count(f"{key}!") - 1
        if looked < len(_LOOKS):
            yield from memory.record(f"{key}!{looked + 2}", b"1")
        yield from memory.suspend(_LOOKS[min(looked, len(_LOOKS) - 1)])

    def _watch(self, key: str, members: list[_Member]) -> Plan[None]:
        """Have the ends of jobs wake this flow when all have ended.

        The nodes are stored before their flow starts: it starts with those that have ended meanwhile.
        """
        flow = self._watch_of(key)
        nodes = [NewNode(one.node, uses=0, ref=Ref(one.queue, one.id)) for one in members if one.node >= 0]
        for at in range(0, len(nodes), FLOW_STEP):
            yield VerbCall("put_flow", (flow, nodes[at : at + FLOW_STEP]), {"start": False})
        if nodes:
            yield VerbCall("put_flow", (flow, []), {"start": True})

    def _is_over(self, key: str) -> Plan[bool]:
        """Whether all jobs that `_watch` was given have ended."""
        (info,) = yield VerbCall("get_flows", ([self._watch_of(key).ref],))
        return info is None or info.ended

    # ── the end of the attempt ───────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Check the end of a function that has returned: it may have swallowed what ends the attempt."""
        memory = self.memory
        memory.over = True
        if memory.ending is not None:
            raise memory.ending
        if memory.stored(FAILED) is not None:
            raise StepsFailed

    def settled(self, error: BaseException) -> BaseException:
        """The error with which an attempt ends after `failed`, if middleware has raised this one."""
        memory = self.memory
        memory.over = True
        if memory.ending is not None:
            return memory.ending
        return self._ended_with or Discard("undone") if isinstance(error, StepsFailed) else error

    def failed(self, error: BaseException) -> Plan[BaseException]:
        """Undo the steps if the flow has failed for good; returns the error with which the attempt ends."""
        try:
            self._ended_with = yield from self._failed(error)
        except BaseException as wrong:  # boundary: a user's undo function
            self._ended_with = wrong
            raise
        return self._ended_with

    def _failed(self, error: BaseException) -> Plan[BaseException]:
        memory = self.memory
        memory.over = True
        if memory.ending is not None:
            return memory.ending
        if isinstance(error, (FlowSuspended, Interrupted)) or not isinstance(error, (Exception, StepsFailed)):
            return error
        while memory.active:  # branches: their steps must not run beside the undos or the next attempt
            yield Pause(None)
        yield from memory.read()  # the function may have failed before its first step
        marked = memory.stored(FAILED)
        if marked is None:
            if not self._is_final(error):
                return error
            early = can_be_undone(memory.checkpoint) and memory.unreached()
            if not self._undo and not early:
                return error
            marked = yield from memory.record(FAILED, text_of(error, "the flow failed")[:300].encode())
            if early:  # one more run tells how the steps that this one did not reach are undone
                memory.suspended = FlowSuspended(UNDO_AFTER)
                return memory.suspended
        for key, undo, value in reversed(self._undo):
            if memory.stored(f"undo!{key}") is None:
                yield UserCall(undo, (value,), {}, "an undo function")
                yield from memory.record(f"undo!{key}", b"null")
        why = failure_of(marked.value)
        if isinstance(error, StepsFailed):
            return Discard(f"undone after: {why}")
        if memory.unreached() and self._is_final(error):
            return Discard(
                f"not undone, as the function did not reach its stored steps: {text_of(error)[:300]}"
            )
        return error

    def _is_final(self, error: BaseException) -> bool:
        job, now = self.memory.attempt.job, self.memory.now()
        outcome = outcome_of(job, now, error, self.memory.access.options)
        return decide(job, outcome, now).state in (State.DEAD, State.CANCELLED)


def _check_members(calls: Sequence[JobCall[Any]]) -> None:
    for call in calls:
        if not isinstance(call, JobCall):
            raise FlowError(f"gather takes a list of task.job(...), not {call!r:.100}; nothing was stored")
    if len(calls) > MOST_MEMBERS:
        raise FlowError(
            f"gather of {len(calls):,} jobs: the limit is {MOST_MEMBERS:,}; nothing was stored. Gather lists "
            "of jobs one after the other"
        )
    ids = [call.given_id for call in calls if call.given_id]
    if len(set(ids)) < len(ids):
        raise FlowError("gather of two jobs with the same id; nothing was stored")


def _member_failed(found: _Failed) -> MemberFailed:
    ids = found.failed
    return MemberFailed(f"{len(ids)} of {found.of} jobs did not complete: {', '.join(ids[:5])}", ids)


def _abandoned(jobs: Sequence[Job | None]) -> bool:
    """Whether some of these jobs were cancelled with the job that waited for them."""
    return any(job is not None and job.reason == FLOW_ABANDONED for job in jobs)


def _completed(job: Job | None) -> bool:
    return job is not None and job.state is State.COMPLETED


def _codec_of(function: Callable[..., Any], name: str) -> ResultCodec:
    """The codec of a step's result, by the function's annotation."""
    own = getattr(function, "function", function)  # that of a task
    try:
        return result_codec_of(own, name=f"step {name}", max_bytes=LARGEST_STEP)
    except (ValueError, TypeError, ConfigError):  # a builtin without a signature
        return ANY_RESULT


def _encoded(codec: ResultCodec, value: Any, key: str) -> bytes:
    try:
        return codec.encode(value)
    except ResultError as error:
        raise FlowError(f"the result of step {key!r} cannot be remembered: {error}") from error
