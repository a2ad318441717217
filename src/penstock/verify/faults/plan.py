"""The faults of a run: their types, the plan (the same for the same seed), and who injects each."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigError, did_you_mean
from penstock.stores.contract import Capability
from penstock.verify.environment import Capabilities
from penstock.verify.faults.chaos_run import ChaosRun, NoVictim
from penstock.verify.faults.job_faults import ActFaults, TaskFaults
from penstock.verify.faults.process_faults import ProcessFaults, RemoteFaults
from penstock.verify.faults.store_faults import StoreFaults

# ── types ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class FaultType:
    """A type of fault: name, description, area (processes, store, tasks or acts), and requirements."""

    name: str
    says: str
    area: str
    private: bool = False  # needs a server of its own: it would affect other users of a shared server
    proxy: bool = False  # needs a proxy
    only: tuple[str, ...] = ()  # the stores on which it exists; empty: all
    needs: tuple[Capability, ...] = ()  # what the store must be able to do

    def refusal(self, capabilities: Capabilities) -> str:
        """Why the fault is not possible with these capabilities; empty if it is."""
        if self.only and capabilities.store not in self.only:
            return f"it needs {' or '.join(self.only)}, and this is {capabilities.store}"
        if lacks := next((need for need in self.needs if need not in capabilities.can), None):
            return f"the store cannot {lacks.value}"
        if self.private and not capabilities.private:
            return (
                "it would affect other users of that server: start a private one with "
                f"--private {capabilities.store}"
            )
        if self.proxy and not capabilities.proxy:
            return "it needs a proxy in front of one Redis server, over TCP without TLS"
        return ""


_PARKS = (Capability.PARKING, Capability.SEARCH, Capability.FOLLOW)  # jobs are parked, found and cancelled
_FINDS = (Capability.SEARCH, Capability.CHANGE)
_ACTS = (Capability.FOLLOW, Capability.SEARCH, Capability.CHANGE)
_BULK = (*_ACTS, Capability.DOCUMENTS)
_TELLS = (Capability.WORKERS, Capability.DOCUMENTS)
_WITH_REPLICAS = ("redis-sentinel", "redis-cluster")
_REDIS = ("redis", *_WITH_REPLICAS)

FAULT_TYPES: dict[str, FaultType] = {
    one.name: one
    for one in (
        FaultType("kill-worker", "SIGKILL a worker: alone, supervised, or a supervisor", "processes"),
        FaultType("stop-worker", "SIGSTOP a worker until its leases have run out, then SIGCONT", "processes"),
        FaultType("kill-producer", "SIGKILL a producer", "processes"),
        FaultType("stop-producer", "SIGSTOP a producer, then SIGCONT", "processes"),
        FaultType("storm", "workers start and stop, or are killed, within seconds", "processes"),
        FaultType("clock", "a worker whose wall clock is an hour ahead or behind", "processes",
                  needs=_FINDS),
        FaultType("two-versions", "workers with newer code: one task removed, one renamed", "processes",
                  needs=_PARKS),
        FaultType("rename", "workers and a producer of a release that has renamed tasks, beside the old one",
                  "processes", needs=_PARKS),
        FaultType("restart-store", "kill and restart the server; for a file, all processes of the run",
                  "store"),
        FaultType("stop-store", "SIGSTOP the server; for a file, hold its write lock", "store", private=True),
        FaultType("power-cut", "the store's machine loses power: unsynced writes are lost", "store",
                  private=True, only=("redis", "sqlite")),
        FaultType("reset", "reset all connections", "store", proxy=True),
        FaultType("half-open", "connections stay open, and no byte arrives", "store", proxy=True),
        FaultType("latency", "every byte takes longer", "store", proxy=True),
        FaultType("script-flush", "the server drops all cached scripts", "store", private=True, only=_REDIS),
        FaultType("failover", "kill a master; its replica takes over", "store", private=True,
                  only=_WITH_REPLICAS),
        FaultType("lost-shard", "a master and its replicas stop: their queues wait, others continue",
                  "store", private=True, only=("redis-cluster",)),
        FaultType("disk-full", "writes fail because the disk is full", "store", private=True),
        FaultType("raise", "a task raises", "tasks"),
        FaultType("hang", "a task hangs until its timeout: a coroutine, a thread, a process", "tasks"),
        FaultType("block-loop", "a coroutine blocks the event loop", "tasks"),
        FaultType("eat-memory", "a task allocates memory until it is killed", "tasks"),
        FaultType("os-exit", "a task calls os._exit: in a process of its own, or in the worker", "tasks"),
        FaultType("segfault", "a task in a process of its own crashes the interpreter", "tasks"),
        FaultType("unknown-task", "a job whose task no worker has", "tasks", needs=_PARKS),
        FaultType("poison-payload", "a job whose payload cannot be decoded into arguments", "tasks"),
        FaultType("act-retry", "an operator retries jobs: ended or queued ones", "acts", needs=_ACTS),
        FaultType("act-run-now", "an operator runs delayed jobs now", "acts", needs=_ACTS),
        FaultType("act-reschedule", "an operator reschedules jobs", "acts", needs=_ACTS),
        FaultType("act-cancel", "an operator cancels jobs, also running ones", "acts", needs=_ACTS),
        FaultType("act-delete", "an operator deletes jobs", "acts", needs=_ACTS),
        FaultType("act-duplicate", "an operator duplicates jobs", "acts", needs=_ACTS),
        FaultType("act-discard", "an operator discards jobs, which are dead then", "acts", needs=_ACTS),
        FaultType("act-complete", "an operator completes jobs that are not running", "acts", needs=_ACTS),
        FaultType("act-move", "an operator moves jobs to another queue", "acts", needs=_ACTS),
        FaultType("act-edit", "an operator edits the arguments of a job", "acts", needs=_ACTS),
        FaultType("act-bulk", "an act on all jobs of a filter, run by the workers; some are aborted", "acts",
                  needs=_BULK),
        FaultType("remote-quiet", "an operator quiets a worker, and later ends it", "acts", needs=_TELLS),
        FaultType("remote-drain", "an operator drains a worker", "acts", needs=_TELLS),
        FaultType("remote-stop", "an operator stops a worker at once", "acts", needs=_TELLS),
        FaultType("remote-restart", "an operator restarts a process of a supervisor", "acts", needs=_TELLS),
    )
}  # fmt: skip


def possible(capabilities: Capabilities) -> list[str]:
    """The types that are possible with these capabilities, in the order of the table."""
    return [name for name in FAULT_TYPES if not _refusal(name, capabilities)]


def choose(asked: Sequence[str], capabilities: Capabilities) -> list[str]:
    """The types that `--faults` names. Raises ConfigError for an unknown or impossible type."""
    if list(asked) == ["all"]:
        return possible(capabilities)
    problems = list(_problems(asked, capabilities))
    if problems:
        raise ConfigError("\n".join(problems))
    return [name for name in FAULT_TYPES if name in asked]


def _problems(asked: Iterable[str], capabilities: Capabilities) -> Iterable[str]:
    for name in asked:
        if name not in FAULT_TYPES:
            known = did_you_mean(name, FAULT_TYPES) or f"; the kinds are all, {', '.join(FAULT_TYPES)}"
            yield f"--faults: there is no kind {name!r}{known}"
        elif refusal := _refusal(name, capabilities):
            yield f"--faults {name}: not possible here: {refusal}"


def _refusal(name: str, capabilities: Capabilities) -> str:
    kind = FAULT_TYPES[name]
    file = capabilities.store == "sqlite"
    if name == "disk-full" and capabilities.private:
        if file and not capabilities.small_disk:
            return "it needs a small disk, which only root on Linux can mount"
        if not file and sys.platform != "linux":
            return "limiting the size of a server's files is only possible on Linux"
    if name == "restart-store" and not file and not capabilities.private:
        return FaultType(name, "", "", private=True).refusal(capabilities)
    return kind.refusal(capabilities)


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────


#: Areas, each with its own injector thread: shortest and longest pause between two of its faults (s).
AREAS: dict[str, tuple[float, float]] = {
    "processes": (0.5, 4.0),
    "store": (1.0, 4.0),
    "tasks": (0.2, 1.0),
    "acts": (0.2, 1.0),
}
#: Relative frequency of types whose recovery times are reported, and of acts on jobs (others: 1).
_OFTEN = {"kill-worker": 4, "restart-store": 2}
_OFTEN |= {name: 4 for name in FAULT_TYPES if name.startswith("act-")}


@dataclass(frozen=True)
class PlannedFault:
    """A fault to inject after a pause (s).

    `random_values` (0 to 1) choose its target and its details.
    """

    pause: float
    kind: str
    random_values: tuple[float, float, float]
    first: bool  # the first of its type


def plan(seed: int, area: str, asked: Sequence[str]) -> Iterator[PlannedFault]:
    """The endless plan of one area: each type once, then random types. Empty if no type is of this area."""
    kinds = [name for name in asked if FAULT_TYPES[name].area == area]
    rng = random.Random(f"{seed}/{area}")  # noqa: S311 (chaos by lot, no secret)
    round_of_all = rng.sample(kinds, len(kinds))
    for kind in round_of_all:
        yield _step(rng, area, kind, first=True)
    while kinds:
        (kind,) = rng.choices(kinds, [_OFTEN.get(kind, 1) for kind in kinds])
        yield _step(rng, area, kind, first=False)


def _step(rng: random.Random, area: str, kind: str, *, first: bool) -> PlannedFault:
    pause = rng.uniform(*AREAS[area])
    return PlannedFault(pause, kind, (rng.random(), rng.random(), rng.random()), first)


# ── injection ────────────────────────────────────────────────────────────────────────────────────


class FaultInjector:
    """Injects planned faults into the processes, the store and the tasks of a run, and does planned acts."""

    def __init__(self, run: ChaosRun) -> None:
        processes, self._store, tasks = ProcessFaults(run), StoreFaults(run), TaskFaults(run)
        self._acts: dict[str, Callable[[float, float, float], None]] = {
            "kill-worker": processes.kill_worker,
            "stop-worker": processes.stop_worker,
            "kill-producer": processes.kill_producer,
            "stop-producer": processes.stop_producer,
            "storm": processes.storm,
            "clock": processes.clock,
            "two-versions": processes.two_versions,
            "rename": processes.rename,
            "restart-store": self._store.restart_store,
            "power-cut": self._store.power_cut,
            "stop-store": self._store.stop_store,
            "reset": self._store.reset,
            "half-open": self._store.half_open,
            "latency": self._store.latency,
            "script-flush": self._store.script_flush,
            "failover": self._store.failover,
            "lost-shard": self._store.lost_shard,
            "disk-full": self._store.disk_full,
            "raise": tasks.raise_,
            "hang": tasks.hang,
            "block-loop": tasks.block_loop,
            "eat-memory": tasks.eat_memory,
            "os-exit": tasks.os_exit,
            "segfault": tasks.segfault,
            "unknown-task": tasks.unknown_task,
            "poison-payload": tasks.poison_payload,
            **ActFaults(run).by_kind(),
            **RemoteFaults(run).by_kind(),
        }

    @property
    def kinds(self) -> set[str]:
        """The names of all fault types that it can inject."""
        return set(self._acts)

    def inject(self, step: PlannedFault) -> None:
        """Inject this fault. A fault without a victim (e.g. one that has just died) is not counted."""
        with contextlib.suppress(NoVictim):
            self._acts[step.kind](*step.random_values)

    def detect_failovers(self) -> None:
        """Record a failover that this run did not cause."""
        self._store.detect_failovers()
