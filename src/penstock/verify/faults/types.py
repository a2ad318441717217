"""The types of faults: name, description, area, and the stores on which each is possible."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigError, did_you_mean
from penstock.verify.environment import Capabilities

__all__ = ["FAULT_TYPES", "FaultType", "choose", "possible"]


@dataclass(frozen=True)
class FaultType:
    """A type of fault: name, description, area (processes, store, tasks or acts), and requirements."""

    name: str
    says: str
    area: str
    private: bool = False  # needs a server of its own: it would affect other users of a shared server
    proxy: bool = False  # needs a proxy
    only: tuple[str, ...] = ()  # the stores on which it exists; empty: all

    def refusal(self, capabilities: Capabilities) -> str:
        """Why the fault is not possible with these capabilities; empty if it is."""
        if self.only and capabilities.store not in self.only:
            return f"it needs {' or '.join(self.only)}, and this is {capabilities.store}"
        if self.private and not capabilities.private:
            return (
                "it would affect other users of that server: start a private one with "
                f"--private {capabilities.store}"
            )
        if self.proxy and not capabilities.proxy:
            return "it needs a proxy in front of one Redis server, over TCP without TLS"
        return ""


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
        FaultType("clock", "a worker whose wall clock is an hour ahead or behind", "processes"),
        FaultType("two-versions", "workers with newer code: one task removed, one renamed", "processes"),
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
        FaultType("unknown-task", "a job whose task no worker has", "tasks"),
        FaultType("poison-payload", "a job whose payload cannot be decoded into arguments", "tasks"),
        FaultType("act-retry", "an operator retries jobs: ended or queued ones", "acts"),
        FaultType("act-run-now", "an operator runs delayed jobs now", "acts"),
        FaultType("act-reschedule", "an operator reschedules jobs", "acts"),
        FaultType("act-cancel", "an operator cancels jobs, also running ones", "acts"),
        FaultType("act-delete", "an operator deletes jobs", "acts"),
        FaultType("act-duplicate", "an operator duplicates jobs", "acts"),
        FaultType("act-discard", "an operator discards jobs, which are dead then", "acts"),
        FaultType("act-move", "an operator moves jobs to another queue", "acts"),
        FaultType("act-edit", "an operator edits the arguments of a job", "acts"),
        FaultType("act-bulk", "an act on all jobs of a filter, run by the workers; some are aborted", "acts"),
        FaultType("remote-quiet", "an operator quiets a worker, and later ends it", "acts"),
        FaultType("remote-drain", "an operator drains a worker", "acts"),
        FaultType("remote-stop", "an operator stops a worker at once", "acts"),
        FaultType("remote-restart", "an operator restarts a process of a supervisor", "acts"),
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
