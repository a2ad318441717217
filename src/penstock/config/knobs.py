"""All settings with their defaults and purpose: the single list for code, environment, file and docs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from penstock.config import kinds

#: Milliseconds. A thread that does not react is given up 3 × `thread_grace` plus this time after its timeout.
GIVES_UP_AFTER = 2_000


class Knob(msgspec.Struct, frozen=True):
    """One setting: its name, the kind of its value, its default as a user writes it, and its purpose."""

    name: str
    kind: kinds.Kind
    default: Any
    why: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PENSTOCK_{self.name.upper()}"


def _knob(kind: kinds.Kind, default: Any, why: str, *, secret: bool = False) -> Any:
    return field(
        repr=not secret,
        default_factory=lambda: kind.read("default", default),
        metadata={"kind": kind, "default": default, "why": why},
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings, checked and converted: durations in ms, sizes in bytes. `Config()` has the defaults."""

    # the store and the app
    url: str = _knob(
        kinds.URL, "sqlite:///jobs.db", "URL of the store; the default is one durable file, without a server"
    )
    namespace: str = _knob(kinds.NAMESPACE, "", "name that separates several applications on one store")
    app: str = _knob(kinds.TEXT, "", "module:attribute of the app, for commands without an app")

    # new jobs, unless their task or call sets the option
    queue: str = _knob(kinds.QUEUE, "default", "queue of tasks without a queue of their own")
    timeout: int | None = _knob(
        kinds.DURATION_OR_NONE,
        "30m",
        "time limit of one attempt: long enough for work, short enough to notice a hang",
    )
    max_attempts: int = _knob(
        kinds.count(1, 10_000),
        25,
        "maximum number of attempts of one job; with the default backoff the last one is after days",
    )
    retention: int = _knob(kinds.DURATION, "10m", "how long a completed job and its result are kept")
    max_payload: int = _knob(
        kinds.VALUE_SIZE,
        "1MB",
        "maximum size of one job's arguments; store larger data elsewhere and pass its key",
    )
    max_result: int = _knob(
        kinds.VALUE_SIZE,
        "1MB",
        "maximum size of one job's result; store larger data elsewhere and return its key",
    )

    outbox: int = _knob(
        kinds.count(0),
        0,
        "maximum number of jobs kept in memory while the store is away; lost if the process ends; 0: none",
    )

    key: str = _knob(
        kinds.KEYS,
        "",
        "encryption key of job data; with several, the first encrypts and all decrypt",
        secret=True,
    )
    encrypt: bool = _knob(
        kinds.FLAG, True, "with a key: true encrypts job data, false signs it and leaves it readable"
    )
    key_required: bool = _knob(
        kinds.FLAG, False, "with a key, refuse jobs that are neither encrypted nor signed"
    )

    full_timeout: int = _knob(
        kinds.DURATION, "30s", "how long an enqueue waits for room in a full queue with on_full=wait"
    )

    # retention of ended jobs
    keep_dead: int = _knob(kinds.DURATION, "90d", "how long a dead job is kept, for inspection and retry")
    keep_dead_count: int = _knob(
        kinds.count(0), 100_000, "maximum number of dead jobs kept per queue; the newest are kept"
    )
    keep_finished_count: int = _knob(
        kinds.count(0), 100_000, "maximum number of completed and cancelled jobs kept per queue"
    )

    # a worker
    queues: str = _knob(
        kinds.TEXT, "", "queues that a worker serves (critical:weight=6,default); empty: those of its app"
    )
    strict: bool = _knob(
        kinds.FLAG, False, "true: serve queues in strict order; false: by weight, so that none starves"
    )
    concurrency: int = _knob(
        kinds.count(1, 100_000), 20, "slots per worker process: maximum number of attempts at the same time"
    )
    processes: int = _knob(
        kinds.count(1, 1_024), 1, "worker processes under one supervisor; one per core for CPU work"
    )
    process_slots: int = _knob(
        kinds.SLOTS, "auto", "maximum number of process tasks at the same time per worker; auto: one per core"
    )
    max_jobs_per_child: int = _knob(
        kinds.count(0),
        0,
        "number of jobs after which a child process for process tasks is replaced; 0: no limit",
    )
    max_memory_per_child: int = _knob(
        kinds.SIZE, 0, "resident memory above which a child process is replaced after a job; 0: no limit"
    )
    max_jobs_per_worker: int = _knob(
        kinds.count(0), 0, "number of jobs after which a worker process is replaced; 0: no limit"
    )
    max_memory_per_worker: int = _knob(
        kinds.SIZE, 0, "resident memory above which a worker process is replaced; 0: no limit"
    )
    process_start: str = _knob(
        kinds.choice("fork", "preload", "spawn"),
        "fork",
        "start of child processes: forked before (fork) or after (preload) the import of the app, or spawned",
    )
    process_spares: int = _knob(
        kinds.count(0),
        0,
        "child processes kept ready beyond those with a job, for the place of one that dies",
    )
    process_nice: int = _knob(
        kinds.count(0, 19), 0, "niceness of child processes for process tasks, added to the worker's"
    )
    process_cpus: str = _knob(
        kinds.CPUS,
        "",
        "processors that child processes may use (0,1,3); empty: those of the worker; Linux only",
    )
    drain_timeout: int = _knob(
        kinds.DURATION, "30s", "how long a stopping worker waits for running jobs before it releases them"
    )
    kill_grace: int = _knob(
        kinds.DURATION,
        "10s",
        "time past a job's deadline at which its process is killed; at least 3 × thread_grace + 2s",
    )
    thread_grace: int = _knob(
        kinds.DURATION,
        "2s",
        "time for a thread to end after its timeout, and again after an exception is raised in it",
    )
    cleanup_grace: int = _knob(
        kinds.DURATION,
        "10s",
        "time for an interrupted attempt to clean up, from when it notices, before it is interrupted again",
    )
    block_report: int = _knob(
        kinds.duration("50ms"), "1s", "an event loop that is blocked for this long is reported with its stack"
    )

    # leases and wake-up
    lease: int = _knob(
        kinds.duration("200ms"),
        "15s",
        "time after which a lost worker's jobs run again; survives two missed heartbeats",
    )
    heartbeat: int = _knob(
        kinds.duration("50ms"),
        "5s",
        "interval at which leases are extended; a third of lease if only lease is set",
    )
    safety_poll: int = _knob(
        kinds.duration("100ms"),
        "5s",
        "interval at which an idle worker looks for jobs even if no notification arrived",
    )
    look_ahead: int = _knob(
        kinds.DURATION,
        "50ms",
        "jobs beyond the free slots are leased only if they are expected to start within this time",
    )
    slot_wait: int = _knob(
        kinds.DURATION,
        "50ms",
        "a leased job that has waited this long for a slot returns to its position in the queue",
    )
    announce: int = _knob(
        kinds.duration("100ms", "30s"),
        "10s",
        "interval of a worker's reports; a worker silent for 1m is removed from the list",
    )
    reclaim_every: int = _knob(
        kinds.duration("50ms"), "2s", "interval at which a worker looks for expired leases"
    )
    prune_every: int = _knob(
        kinds.duration("100ms"), "20s", "interval at which a worker looks for jobs whose retention is over"
    )

    # metrics and health
    metrics_port: int = _knob(
        kinds.count(0, 65_535), 0, "port of a worker's metrics for Prometheus, for all its processes; 0: none"
    )
    health_port: int = _knob(kinds.count(0, 65_535), 0, "port of a worker's /livez and /readyz; 0: none")
    metrics_host: str = _knob(
        kinds.TEXT,
        "127.0.0.1",
        "address of both ports; 0.0.0.0 lets other machines read names of queues and tasks",
    )
    asynq_metrics: bool = _knob(kinds.FLAG, False, "true: serve metrics of queues under asynq's names, too")

    # the log
    log_level: str = _knob(
        kinds.choice("debug", "info", "warning", "error"), "info", "level of the worker's log"
    )
    log_format: str = _knob(
        kinds.choice("text", "json"), "text", "text for people; json: one object per line, for machines"
    )


KNOBS: dict[str, Knob] = {
    f.name: Knob(f.name, f.metadata["kind"], f.metadata["default"], f.metadata["why"]) for f in fields(Config)
}
