"""The kinds of harm that a run can do: what each is called, what it is, and where it can be done."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigError, did_you_mean
from penstock.verify.environment import Capabilities

__all__ = ["FAULT_TYPES", "FaultType", "choose", "possible"]


@dataclass(frozen=True)
class FaultType:
    """A word, what is done, who does it (processes, store or tasks), and what it needs."""

    name: str
    says: str
    area: str
    private: bool = False  # it would harm others who use the same server
    relay: bool = False
    only: tuple[str, ...] = ()  # the stores that have such a thing

    def refusal(self, capabilities: Capabilities) -> str:
        """Why it cannot be done here; empty if it can."""
        if self.only and capabilities.store not in self.only:
            return f"it needs {' or '.join(self.only)}, and this is {capabilities.store}"
        if self.private and not capabilities.private:
            return (
                "it would harm everybody on that server: let verify start one of its own with "
                f"--private {capabilities.store}"
            )
        if self.relay and not capabilities.relay:
            return "it needs a relay before one Redis server, reached over TCP without TLS"
        return ""


_WITH_REPLICAS = ("redis-sentinel", "redis-cluster")
_REDIS = ("redis", *_WITH_REPLICAS)

FAULT_TYPES: dict[str, FaultType] = {
    one.name: one
    for one in (
        FaultType("kill-worker", "SIGKILL a worker: alone, supervised, or a supervisor", "processes"),
        FaultType("stop-worker", "SIGSTOP a worker until its leases have run out, then SIGCONT", "processes"),
        FaultType("kill-producer", "SIGKILL who enqueues", "processes"),
        FaultType("stop-producer", "SIGSTOP who enqueues, then SIGCONT", "processes"),
        FaultType("storm", "workers start and stop, or are killed, within seconds", "processes"),
        FaultType("clock", "a worker whose wall clock is an hour ahead or behind", "processes"),
        FaultType("two-versions", "workers of newer code: one task is gone, one renamed", "processes"),
        FaultType("restart-store", "kill the server and start it again; for a file, all of the run", "store"),
        FaultType("stop-store", "SIGSTOP the server; for a file, hold its write lock", "store", private=True),
        FaultType("power-cut", "the store's machine goes dark: what its disk has not yet is gone", "store",
                  private=True, only=("redis", "sqlite")),
        FaultType("reset", "reset all connections", "store", relay=True),
        FaultType("half-open", "connections stay open, and nothing arrives any more", "store", relay=True),
        FaultType("latency", "every byte takes longer", "store", relay=True),
        FaultType("script-flush", "the server forgets all scripts", "store", private=True, only=_REDIS),
        FaultType("failover", "kill a master; its replica takes over", "store", private=True,
                  only=_WITH_REPLICAS),
        FaultType("lost-shard", "a master and its replicas are gone: their queues wait, others go on",
                  "store", private=True, only=("redis-cluster",)),
        FaultType("disk-full", "writes fail for want of room", "store", private=True),
        FaultType("raise", "a task raises", "tasks"),
        FaultType("hang", "a task hangs until its timeout: a coroutine, a thread, a process", "tasks"),
        FaultType("block-loop", "a coroutine blocks the event loop", "tasks"),
        FaultType("eat-memory", "a task takes memory until it is killed", "tasks"),
        FaultType("os-exit", "a task calls os._exit: in a process of its own, or in the worker", "tasks"),
        FaultType("segfault", "a task in a process of its own crashes the interpreter", "tasks"),
        FaultType("unknown-task", "a job of a task that nobody knows", "tasks"),
        FaultType("poison-payload", "a job whose bytes are no arguments", "tasks"),
    )
}  # fmt: skip


def possible(capabilities: Capabilities) -> list[str]:
    """All that can be done here, in the order of the table."""
    return [name for name in FAULT_TYPES if not _refusal(name, capabilities)]


def choose(asked: Sequence[str], capabilities: Capabilities) -> list[str]:
    """What `--faults` means here; raises ConfigError for an unknown kind, or one that is not possible."""
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
            return "it needs a disk of its own, which only root on Linux may mount"
        if not file and sys.platform != "linux":
            return "a server's files can only be kept from growing on Linux"
    if name == "restart-store" and not file and not capabilities.private:
        return FaultType(name, "", "", private=True).refusal(capabilities)
    return kind.refusal(capabilities)
