"""Flows: groups, chains and chords beside the same jobs alone; durable steps; signals."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.flow_tasks import STEPS, FlowTasks
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.measures.size import room
from benchmarks.rig import Rig, new_runner
from penstock.workflows import chain, chord

__all__ = ["FLOWS", "GROUP"]

#: The most seconds that a flow may take.
_PATIENCE = 120.0
#: Callers that send signals at the same time.
_SENDERS = 1_000


def take(lab: Lab) -> Iterator[Sample]:
    for name in lab.sizes.flows or FLOWS:
        yield from FLOWS[name](lab)


def _rig(lab: Lab) -> tuple[Rig, FlowTasks]:
    rig = Rig(lab.setup, lab.folder, lab.concurrency, tasks=FlowTasks, served="benchmarks.served_flows:app")
    assert isinstance(rig.tasks, FlowTasks)
    return rig, rig.tasks


def _cpu(rig: Rig) -> float:
    """CPU seconds of the worker, and of the server if there is one."""
    server = 0.0 if rig.server is None else rig.server.cpu()
    return server + (0.0 if rig.running is None else rig.running.cpu())


def _run(rig: Rig, jobs: int) -> float:
    """Run queued jobs; returns the µs of CPU per job, without the start of the worker."""
    rig.wait(1)
    before, cpu = rig.counters.total(), _cpu(rig)
    rig.wait(jobs)
    return (_cpu(rig) - cpu) * 1e6 / max(1, jobs - before)


def _drained(rig: Rig, tasks: FlowTasks, jobs: int) -> tuple[float, float]:
    """The rate of plain jobs with results kept, and the µs of CPU per job."""
    for start in range(0, jobs, 10_000):
        rig.app.enqueue_many([tasks.number.job(n) for n in range(start, min(jobs, start + 10_000))])
    with rig.workers():
        cpu = _run(rig, jobs)
        rig.settled()
        return rig.counters.rate(), cpu


def _group(lab: Lab) -> Iterator[Sample]:
    """A chord of many members between two drains of the same jobs."""
    jobs, plain = lab.sizes.jobs, []
    rig, tasks = _rig(lab)
    with rig:
        plain.append(_drained(rig, tasks, jobs))
    rig, tasks = _rig(lab)
    with rig:
        started = time.perf_counter()
        handle = chord(tasks.number.map(range(jobs)), then=tasks.total).enqueue()
        submitted = time.perf_counter() - started
        with rig.workers():
            cpu = _run(rig, jobs)
            assert handle.result(timeout=_PATIENCE) == jobs * (jobs - 1) // 2
        first, last = rig.counters.span()
        body = rig.counters.instant_times()[0]
        rate = rig.counters.rate()
    rig, tasks = _rig(lab)
    with rig:
        plain.append(_drained(rig, tasks, jobs))
    alone = statistics.mean(rate for rate, _ in plain)
    yield "group_submit", jobs / submitted
    yield "group_alone", alone
    yield "group_run", rate
    if lab.setup.shared:
        yield "group_alone_cpu", statistics.mean(spent for _, spent in plain)
        yield "group_run_cpu", cpu
    yield "group_share", rate / alone * 100
    yield "group_body", (body - last) / 1e6
    yield "group_share_with_body", jobs / ((body - first) / 1e9) / alone * 100


def _size(lab: Lab) -> Iterator[Sample]:
    """Room of a member: enqueued, and once its flow has completed; and of a plain job."""
    for name in ("plain", "member"):
        rig, tasks = _rig(lab)
        jobs = min(lab.sizes.jobs, 20_000)

        def put(n: int, rig: Rig = rig, tasks: FlowTasks = tasks, name: str = name) -> None:
            if name == "member":
                chord(tasks.number.map(range(n)), then=tasks.total).enqueue()
            else:
                rig.app.enqueue_many([tasks.number.job(k) for k in range(n)])

        def run(n: int, rig: Rig = rig) -> None:
            with rig.workers():
                rig.wait(n)
                rig.settled()

        with rig:
            put(1)
            queued = room(rig, lambda put=put, jobs=jobs: put(jobs)) / jobs
            yield f"size_{name}_queued", queued
            if lab.setup.store != "memory":  # its worker shares the memory that is measured
                yield f"size_{name}_ended", queued + room(rig, lambda run=run, jobs=jobs: run(jobs)) / jobs


def _chain(lab: Lab) -> Iterator[Sample]:
    rig, tasks = _rig(lab)
    jobs = min(lab.sizes.jobs, 1_000)
    with rig, rig.workers():
        rig.warm()
        started = time.perf_counter()
        handle = chain(tasks.number.job(7), *[tasks.number] * (jobs - 1)).enqueue()
        assert handle.result(timeout=_PATIENCE) == 7
        yield "chain", jobs / (time.perf_counter() - started)


def _chords(lab: Lab) -> Iterator[Sample]:
    """200 chords of 20, enqueued before the worker starts."""
    rig, tasks = _rig(lab)
    chords = max(1, min(lab.sizes.jobs // 20, 200))
    with rig:
        started = time.perf_counter()
        handles = [chord(tasks.number.map(range(20)), then=tasks.total).enqueue() for _ in range(chords)]
        yield "chords_submit", chords / (time.perf_counter() - started)
        with rig.workers():
            rig.wait(chords * 20)
            rig.wait(chords, rig.counters.instants)
            assert all(handle.result(timeout=_PATIENCE) == 190 for handle in handles)
        first, _ = rig.counters.span()
        last = max(rig.counters.instant_times())
        yield "chords", chords * 21 / ((last - first) / 1e9)


def _steps(lab: Lab) -> Iterator[Sample]:
    rig, tasks = _rig(lab)
    steps = min(lab.sizes.jobs, STEPS)
    with rig, rig.workers():
        rig.warm()
        took = tasks.stepping.enqueue(steps).result(timeout=_PATIENCE)
        yield "steps", steps / sum(took)
        yield "steps_last", statistics.median(took[-3:]) / statistics.median(took[:3])


def _signals(lab: Lab) -> Iterator[Sample]:
    """Flows that are suspended, then all signalled, and run to their ends."""
    rig, tasks = _rig(lab)
    jobs = lab.sizes.jobs
    with rig:
        started = time.perf_counter()
        for start in range(0, jobs, 10_000):
            rig.app.enqueue_many([tasks.waiting.job(n) for n in range(start, min(jobs, start + 10_000))])
        with rig.workers():
            rig.wait(jobs, lambda: _suspended(rig))
            yield "signals_suspend", jobs / (time.perf_counter() - started)
            started = time.perf_counter()
            with new_runner() as runner:
                runner.run(_send(rig, jobs))
            yield "signals_send", jobs / (time.perf_counter() - started)
            rig.wait(jobs)
            rig.settled()
            yield "signals_resume", jobs / (time.perf_counter() - started)


async def _send(rig: Rig, jobs: int) -> None:
    numbers = iter(range(jobs))

    async def send() -> None:
        for n in numbers:
            await rig.app.asignal("go", key=n, most=jobs)

    async with asyncio.TaskGroup() as senders:
        for _ in range(_SENDERS):
            senders.create_task(send())


def _suspended(rig: Rig) -> int:
    time.sleep(0.1)  # a count of the store's, not of the tmpfs: leaves the store to the worker
    return sum(queue.counts.get("suspended", 0) for queue in rig.app.store.sync.queues())


FLOWS: dict[str, Callable[[Lab], Iterator[Sample]]] = {
    "group": _group,
    "size": _size,
    "chain": _chain,
    "chords": _chords,
    "steps": _steps,
    "signals": _signals,
}

GROUP = FigureGroup(
    "flows",
    "Flows and durable steps, `penstock worker` with one process; jobs return a number, which is kept",
    (
        Figure("group_submit", "group: members stored by `enqueue()`", "/s"),
        Figure("group_alone", "the same jobs without a group: drain", "/s"),
        Figure("group_run", "group: members run", "/s"),
        Figure("group_share", "group: share of the drain", "%"),
        Figure(
            "group_alone_cpu", "the same jobs without a group: of worker and server", "µs CPU/job", digits=1
        ),
        Figure("group_run_cpu", "group: of worker and server", "µs CPU/member", digits=1),
        Figure("group_body", "group: from the last member to its body", "ms"),
        Figure("group_share_with_body", "group: share of the drain, up to its body", "%"),
        Figure("size_plain_queued", "bytes of a job in the queue", "B"),
        Figure("size_member_queued", "bytes of a member in the queue", "B"),
        Figure("size_plain_ended", "bytes of a job with its result", "B"),
        Figure("size_member_ended", "bytes of a member with its result", "B"),
        Figure("chain", "chain of 1 000: jobs", "/s"),
        Figure("chords_submit", "200 chords of 20: stored by `enqueue()`", "/s"),
        Figure("chords", "200 chords of 20: jobs", "/s"),
        Figure("steps", "1 000 steps in one job", "/s"),
        Figure("steps_last", "the last 300 steps, as a multiple of the first 300", "", digits=2),
        Figure("signals_suspend", "flows that wait for a signal: enqueued and suspended", "/s"),
        Figure("signals_send", "signals sent by 1 000 callers", "/s"),
        Figure("signals_resume", "from the first signal to the last end", "/s"),
    ),
    take,
)
