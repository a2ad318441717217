"""A memory store that records enqueued jobs and the ends of attempts, even after the jobs are removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.core.changes import replaced_spec
from penstock.core.clock import Clock
from penstock.core.flow import FlowInfo, NewFlow, NewNode
from penstock.core.job import AttemptError, Job, NewJob, Ref, State
from penstock.stores import contract
from penstock.stores.around import EndedJobs, StoreAround, StorePlan, SyncStoreAround, asked
from penstock.stores.memory import MemoryStore

A = TypeVar("A")


#: How long to wait (real ms) for a job that no worker runs: another thread may be about to run it.
_ALONE = 500


class NothingRuns(AssertionError):
    """A test waits for the end of a job that no worker runs."""


class Recorder:
    """Jobs enqueued since the last `clear`, and ends of attempts since the last `begin`."""

    def __init__(self) -> None:
        self.enqueued: list[NewJob] = []
        self.ends: Counter[State] = Counter()
        #: (job id, task, error) of every failed attempt.
        self.errors: list[tuple[str, str, AttemptError]] = []
        self._tasks: dict[str, str] = {}
        #: The jobs of flows that were not enqueued yet, by flow.
        self._nodes: dict[Ref, dict[Ref, NewJob]] = {}
        #: Number of runs in progress: `box.run()`, `box.advance()`, `box.run_all()`.
        self.running = 0
        #: Set at every settlement, on the event loop of the worker.
        self.settled = asyncio.Event()

    def begin(self) -> None:
        """Begin a run on the running event loop, and reset the ends of attempts."""
        self.ends, self.errors, self.settled = Counter(), [], asyncio.Event()

    def took(self, jobs: Sequence[NewJob], answers: Sequence[contract.Enqueued]) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            if answer.status is contract.EnqueueStatus.NEW:
                self.remember(job)
            elif answer.status is contract.EnqueueStatus.REPLACED:
                self.enqueued = [
                    replaced_spec(one, job) if (one.queue, one.id) == (job.queue, answer.id) else one
                    for one in self.enqueued
                ]

    def remember(self, job: NewJob) -> None:
        self.enqueued.append(job)
        self._tasks[job.id] = job.task

    def laid(self, flow: NewFlow, nodes: Sequence[NewNode]) -> None:
        """Note the jobs of a flow: each is remembered when it has been enqueued."""
        waiting = self._nodes.setdefault(flow.ref, {})
        waiting.update((node.job.ref, node.job) for node in nodes if node.job is not None)

    def follow(self, store: contract.SyncStore) -> None:
        """Remember the jobs of flows that were enqueued since the last call."""
        for flow, waiting in list(self._nodes.items()):
            jobs = zip(list(waiting), store.get(list(waiting)), strict=True)
            for ref in [ref for ref, job in jobs if job is not None]:
                self.remember(waiting.pop(ref))
            (info,) = store.get_flows([flow])
            if not waiting or info is None:
                del self._nodes[flow]

    def refuse_alone(self, queues: Sequence[contract.QueueInfo]) -> None:
        """Raise NothingRuns if no worker runs jobs at the moment."""
        if not self.running and not any(info.counts.get(State.RUNNING, 0) for info in queues):
            raise NothingRuns(
                "this job has not ended, and inside inline(app) no job runs by itself: call box.run() first, "
                "or box.advance(...) for a delayed job or a retry; in an event loop await box.arun()"
            )

    def ended(self, settlements: Sequence[contract.Settlement], answers: Sequence[contract.Settled]) -> None:
        for one, answer in zip(settlements, answers, strict=True):
            if answer is not contract.Settled.APPLIED:
                continue
            self.ends[one.transition.state] += 1
            if one.transition.error is not None:
                task = self._tasks.get(one.lease.id, "")
                self.errors.append((one.lease.id, task, one.transition.error))
            for job in one.then:
                self.remember(job)
        self.settled.set()


def recording(recorder: Recorder, clock: Clock) -> contract.Store:
    """A new memory store with this clock, recorded by this recorder."""
    return _Recorded(MemoryStore(clock=clock, exact=True), recorder)


class _Recorded(StoreAround):
    """A memory store whose enqueues and settlements are recorded."""

    def __init__(self, store: contract.Store, recorder: Recorder) -> None:
        super().__init__(store)
        self._recorder = recorder

    def around(self, store: contract.Store) -> contract.Store:
        return _Recorded(store, self._recorder)

    def plan(self, request: contract.Request[A]) -> StorePlan[A]:
        recorded = _PLANS.get(type(request))
        plan: StorePlan[A] = (
            asked(request) if recorded is None else recorded(self._recorder, self._store, request)
        )
        return plan

    @property
    def sync(self) -> contract.SyncStore:
        return _SyncRecorded(self._store.sync, self, self._recorder)

    async def stream(self, request: contract.StreamEnds) -> AsyncGenerator[EndedJobs, None]:
        open, timeout = set(request.refs), request.timeout
        async for some in self._store.stream_ends(request.refs, timeout=min(timeout, _ALONE)):
            open -= some.keys()
            yield some
        if open and timeout > _ALONE:
            self._recorder.refuse_alone(await self._store.queues())
            async for some in self._store.stream_ends(list(open), timeout=timeout - _ALONE):
                yield some


class _SyncRecorded(SyncStoreAround):
    def __init__(self, sync: contract.SyncStore, around: StoreAround, recorder: Recorder) -> None:
        super().__init__(sync, around)
        self._recorder = recorder

    def stream(self, request: contract.StreamEnds) -> Generator[EndedJobs, None, None]:
        open, timeout = set(request.refs), request.timeout
        for some in self._sync.stream_ends(request.refs, timeout=min(timeout, _ALONE)):
            open -= some.keys()
            yield some
        if open and timeout > _ALONE:
            self._recorder.refuse_alone(self._sync.queues())
            yield from self._sync.stream_ends(list(open), timeout=timeout - _ALONE)


# ── the plans ────────────────────────────────────────────────────────────────────────────────────


def _enqueue(
    recorder: Recorder, store: contract.Store, request: contract.Enqueue
) -> StorePlan[list[contract.Enqueued]]:
    answers = yield from asked(request)
    recorder.took(request.jobs, answers)
    return answers


def _put_flow(
    recorder: Recorder, store: contract.Store, request: contract.PutFlow
) -> StorePlan[FlowInfo | None]:
    info = yield from asked(request)
    if info is not None:
        recorder.laid(request.flow, request.nodes)
        recorder.follow(store.sync)
    return info


def _add_to_flow(
    recorder: Recorder, store: contract.Store, request: contract.AddToFlow
) -> StorePlan[FlowInfo | None]:
    info = yield from asked(request)
    stored = yield from asked(contract.Get([job.ref for job in request.jobs]))
    for job, one in zip(request.jobs, stored, strict=True):
        if one is not None:  # a repeated call stores none
            recorder.remember(job)
    return info


def _advance_flows(
    recorder: Recorder, store: contract.Store, request: contract.AdvanceFlows
) -> StorePlan[int]:
    done = yield from asked(request)
    recorder.follow(store.sync)
    return done


def _settle(
    recorder: Recorder, store: contract.Store, request: contract.Settle
) -> StorePlan[list[contract.Settled]]:
    answers = yield from asked(request)
    recorder.follow(store.sync)
    recorder.ended(request.settlements, answers)
    return answers


def _wait_for_end(
    recorder: Recorder, store: contract.Store, request: contract.WaitForEnd
) -> StorePlan[list[Job | None]]:
    timeout = request.timeout
    jobs = yield from asked(replace(request, timeout=min(timeout, _ALONE)))
    if timeout <= _ALONE or all(job is None or job.ended for job in jobs):
        return jobs
    recorder.refuse_alone((yield from asked(contract.Queues())))
    return (yield from asked(replace(request, timeout=timeout - _ALONE)))


_PLANS: Mapping[type[contract.Request[Any]], Callable[[Recorder, contract.Store, Any], StorePlan[Any]]] = {
    contract.Enqueue: _enqueue,
    contract.PutFlow: _put_flow,
    contract.AddToFlow: _add_to_flow,
    contract.AdvanceFlows: _advance_flows,
    contract.Settle: _settle,
    contract.WaitForEnd: _wait_for_end,
}
