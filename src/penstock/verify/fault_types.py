"""The kinds of harm that a run can do: what each is called, what it is, and where it can be done."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigError, did_you_mean

__all__ = ["KINDS", "Ground", "Kind", "choose", "possible"]


@dataclass(frozen=True)
class Ground:
    """What a run stands on: the store, whether it is the run's own, whether a relay is before it."""

    store: str  # sqlite, redis, redis-sentinel or redis-cluster
    private: bool = False
    relay: bool = False
    small_disk: bool = False


@dataclass(frozen=True)
class Kind:
    """A word, what is done, who does it (processes, store or tasks), and what it needs."""

    name: str
    says: str
    lane: str
    private: bool = False  # it would harm others who use the same server
    relay: bool = False
    only: tuple[str, ...] = ()  # the stores that have such a thing

    def refusal(self, ground: Ground) -> str:
        """Why it cannot be done here; empty if it can."""
        if self.only and ground.store not in self.only:
            return f"it needs {' or '.join(self.only)}, and this is {ground.store}"
        if self.private and not ground.private:
            return (
                "it would harm everybody on that server: let verify start one of its own with "
                f"--private {ground.store}"
            )
        if self.relay and not ground.relay:
            return "it needs a relay before one Redis server, reached over TCP without TLS"
        return ""


_WITH_REPLICAS = ("redis-sentinel", "redis-cluster")
_REDIS = ("redis", *_WITH_REPLICAS)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("kill-worker", "SIGKILL a worker: a lone one, a supervised one, or a supervisor", "processes"),
        Kind("stop-worker", "SIGSTOP a worker until its leases have run out, then SIGCONT", "processes"),
        Kind("kill-producer", "SIGKILL who enqueues", "processes"),
        Kind("stop-producer", "SIGSTOP who enqueues, then SIGCONT", "processes"),
        Kind("storm", "workers start and stop, or are killed, within seconds", "processes"),
        Kind("clock", "a worker whose wall clock is an hour ahead or behind", "processes"),
        Kind("two-versions", "workers of a newer code, without one task and with a renamed one", "processes"),
        Kind("restart-store", "kill the server and start it again; for a file, all of the run", "store"),
        Kind("stop-store", "SIGSTOP the server; for a file, hold its write lock", "store", private=True),
        Kind("power-cut", "the store's machine goes dark: what its disk has not yet is gone", "store",
             private=True, only=("redis", "sqlite")),
        Kind("reset", "reset all connections", "store", relay=True),
        Kind("half-open", "connections stay open, and nothing arrives any more", "store", relay=True),
        Kind("latency", "every byte takes longer", "store", relay=True),
        Kind("script-flush", "the server forgets all scripts", "store", private=True, only=_REDIS),
        Kind("failover", "kill a master; its replica takes over", "store", private=True,
             only=_WITH_REPLICAS),
        Kind("lost-shard", "a master and its replicas are gone for long: their queues wait, others go on",
             "store", private=True, only=("redis-cluster",)),
        Kind("disk-full", "writes fail for want of room", "store", private=True),
        Kind("raise", "a task raises", "tasks"),
        Kind("hang", "a task hangs until its timeout: a coroutine, a thread, a process", "tasks"),
        Kind("block-loop", "a coroutine blocks the event loop", "tasks"),
        Kind("eat-memory", "a task takes memory until it is killed", "tasks"),
        Kind("os-exit", "a task calls os._exit: in a process of its own, or in the worker", "tasks"),
        Kind("segfault", "a task in a process of its own crashes the interpreter", "tasks"),
        Kind("unknown-task", "a job of a task that nobody knows", "tasks"),
        Kind("poison-payload", "a job whose bytes are no arguments", "tasks"),
    )
}  # fmt: skip


def possible(ground: Ground) -> list[str]:
    """All that can be done here, in the order of the table."""
    return [name for name in KINDS if not _refusal(name, ground)]


def choose(asked: Sequence[str], ground: Ground) -> list[str]:
    """What `--faults` means here; raises ConfigError for an unknown kind, or one that is not possible."""
    if list(asked) == ["all"]:
        return possible(ground)
    problems = list(_problems(asked, ground))
    if problems:
        raise ConfigError("\n".join(problems))
    return [name for name in KINDS if name in asked]


def _problems(asked: Iterable[str], ground: Ground) -> Iterable[str]:
    for name in asked:
        if name not in KINDS:
            near = did_you_mean(name, KINDS)
            yield f"--faults: there is no kind {name!r}{near or '; they are all, ' + ', '.join(KINDS)}"
        elif refusal := _refusal(name, ground):
            yield f"--faults {name}: not possible here: {refusal}"


def _refusal(name: str, ground: Ground) -> str:
    kind = KINDS[name]
    if name == "disk-full" and ground.store == "sqlite" and ground.private and not ground.small_disk:
        return "it needs a disk of its own, which only root on Linux may mount"
    if name == "disk-full" and ground.store != "sqlite" and ground.private and sys.platform != "linux":
        return "a server's files can only be kept from growing on Linux"
    if name == "restart-store" and ground.store != "sqlite" and not ground.private:
        return Kind(name, "", "", private=True).refusal(ground)
    return kind.refusal(ground)
