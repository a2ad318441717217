"""Every knob, its default, its reason: the one list that code, environment, file and docs go by."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from penstock.config.kinds import (
    DURATION,
    DURATION_OR_NONE,
    FLAG,
    KEYS,
    NAMESPACE,
    QUEUE,
    SIZE,
    SLOTS,
    TEXT,
    URL,
    Kind,
    choice,
    count,
    duration,
)

__all__ = ["GIVES_UP_AFTER", "KNOBS", "Config", "Knob"]

#: A thread that does not react is given up three times `thread_grace` and this (ms) after its timeout.
GIVES_UP_AFTER = 2_000


class Knob(msgspec.Struct, frozen=True):
    """One setting: its name, how its value is read, its default as a user would write it, and why."""

    name: str
    kind: Kind
    default: Any
    why: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PENSTOCK_{self.name.upper()}"


def _knob(kind: Kind, default: Any, why: str, *, secret: bool = False) -> Any:
    return field(
        repr=not secret,
        default_factory=lambda: kind.read("default", default),
        metadata={"kind": kind, "default": default, "why": why},
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings, ready for use: durations in ms, sizes in bytes. `Config()` is the defaults."""

    # where jobs are
    url: str = _knob(URL, "sqlite:///jobs.db", "the store; one durable file needs no server")
    namespace: str = _knob(NAMESPACE, "", "several applications on one store do not see each other")
    app: str = _knob(TEXT, "", "module:attribute of the app, for commands that are given none")

    # new jobs, where their task or call does not say otherwise
    queue: str = _knob(QUEUE, "default", "where jobs of tasks without a queue of their own go")
    timeout: int | None = _knob(
        DURATION_OR_NONE, "30m", "limit on one attempt: long enough for work, short enough to notice a hang"
    )
    max_attempts: int = _knob(count(1, 10_000), 25, "with the default backoff the last one comes after days")
    retention: int = _knob(DURATION, "10m", "how long a completed job and its result are kept")
    max_payload: int = _knob(
        SIZE, "1MB", "arguments of one job; larger data belongs elsewhere, with its key here"
    )
    max_result: int = _knob(SIZE, "1MB", "result of one job; likewise")

    outbox: int = _knob(
        count(0), 0, "jobs kept in memory while the store is away; they die with the process; 0 keeps none"
    )

    key: str = _knob(
        KEYS, "", "encrypts what jobs carry; several: writes with the first, reads with all", secret=True
    )
    encrypt: bool = _knob(FLAG, True, "false: with a key, sign what jobs carry, and leave it clear")
    key_required: bool = _knob(FLAG, False, "with a key, refuse jobs that are neither encrypted nor signed")

    full_timeout: int = _knob(
        DURATION, "30s", "how long an enqueue waits for room, where a full queue's rule is to wait"
    )

    # what is kept
    keep_dead: int = _knob(DURATION, "90d", "how long a dead job is kept, to be understood and retried")
    keep_dead_count: int = _knob(count(0), 100_000, "dead jobs kept per queue, newest first")
    keep_finished_count: int = _knob(count(0), 100_000, "completed and cancelled jobs kept per queue")

    # a worker
    queues: str = _knob(
        TEXT, "", "what a worker serves (critical:weight=6,default); empty: what its app uses"
    )
    strict: bool = _knob(
        FLAG, False, "queues in strict order; otherwise each gets its weight, and none starves"
    )
    concurrency: int = _knob(count(1, 100_000), 20, "slots per worker process: attempts at once")
    processes: int = _knob(
        count(1, 1_024), 1, "worker processes under one supervisor; one per core for CPU work"
    )
    process_slots: int = _knob(
        SLOTS, "auto", "process tasks at once per worker; more than cores gains nothing"
    )
    max_jobs_per_child: int = _knob(
        count(0), 0, "a child that runs process tasks is replaced after so many jobs; 0: never for that"
    )
    max_memory_per_child: int = _knob(
        SIZE, 0, "a child that is larger after a job (resident memory) is replaced; 0: never for that"
    )
    drain_timeout: int = _knob(DURATION, "30s", "how long a stopping worker waits before it gives work back")
    kill_grace: int = _knob(
        DURATION, "10s", "a child that far past a job's deadline is killed; 3 × thread_grace + 2s at least"
    )
    thread_grace: int = _knob(
        DURATION, "2s", "for a thread past its timeout: to see it was cancelled, then to die of an exception"
    )
    block_report: int = _knob(
        duration("50ms"), "1s", "an event loop blocked for that long is reported with its stack"
    )

    # leases and wake-up
    lease: int = _knob(
        duration("200ms"), "15s", "a lost worker's jobs run again after that; two heartbeats may go missing"
    )
    heartbeat: int = _knob(
        duration("50ms"), "5s", "how often leases are extended; a third of a lease that was set alone"
    )
    safety_poll: int = _knob(
        duration("100ms"), "5s", "an idle worker looks that often even if nobody woke it"
    )
    look_ahead: int = _knob(
        DURATION, "50ms", "work leased beyond free slots: only what starts within that time"
    )
    slot_wait: int = _knob(
        DURATION, "50ms", "a leased job without a slot for that long goes back to its place"
    )
    announce: int = _knob(
        duration("100ms", "30s"),
        "10s",
        "how often a worker says that it lives; after 1m of silence it is off the list",
    )
    reclaim_every: int = _knob(
        duration("50ms"), "2s", "how often a worker looks for leases that have run out"
    )
    prune_every: int = _knob(duration("100ms"), "20s", "how often a worker looks for jobs whose time is over")

    # the log
    log_level: str = _knob(choice("debug", "info", "warning", "error"), "info", "of the worker's log")
    log_format: str = _knob(
        choice("text", "json"), "text", "text for people; json, one object a line, for machines"
    )


KNOBS: dict[str, Knob] = {
    f.name: Knob(f.name, f.metadata["kind"], f.metadata["default"], f.metadata["why"]) for f in fields(Config)
}
