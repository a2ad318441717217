"""A job with what the inspector adds: its partition, steps, log, attempts, and what operators did to it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.changes import until
from penstock.core.formats import instant, iso, seconds, shown_text
from penstock.core.job import Job
from penstock.core.retry import DEFAULT, DURATIONS, RetryPolicy
from penstock.inspector.audit import ShownEntry
from penstock.inspector.job_edits import version_of
from penstock.stores.contract import PartitionInfo, StoredStep
from penstock.stores.job_log import LogLine


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt. `outcome`: failed, running, or the state in which it left the job; `error`: in a line.

    `worker` is None where it is not kept: of attempts that did not fail.
    """

    attempt: int
    worker: str | None
    fetched_at: int | None
    ended_at: int | None
    outcome: str
    error: str | None = None

    @property
    def ran(self) -> float | None:
        """Seconds from the lease to the end."""
        return seconds(self.fetched_at, self.ended_at)

    def to_dict(self) -> dict[str, Any]:
        """The attempt as a dict for JSON."""
        return {
            "attempt": self.attempt,
            "worker": self.worker,
            "fetched_at": iso(self.fetched_at),
            "ended_at": iso(self.ended_at),
            "ran": self.ran,
            "outcome": self.outcome,
            "error": self.error,
        }


class JobView(Job, frozen=True, kw_only=True):
    """A stored job, and what other verbs of the store say of it.

    - `partition`: the job's partition; None if it has none.
    - `closed`: why its payload cannot be decrypted here; None if it can.
    - `steps`: what it remembers, without the `log`, which is oldest first.
    - `acts`: what operators did to it, newest first.
    """

    partition: PartitionInfo | None
    closed: str | None
    steps: list[StoredStep]
    log: list[LogLine]
    acts: list[ShownEntry]

    @property
    def version(self) -> str:
        """A text that changes with the arguments; an edit may name it."""
        return version_of(self)

    @property
    def attempts(self) -> list[AttemptView]:
        """The attempts whose errors are kept, and the last one, from the job's own facts."""
        found = [
            AttemptView(
                error.attempt, error.worker or None, error.fetched_at, error.at, "failed", error.in_a_line
            )
            for error in self.errors
        ]
        since = self.fetched_at
        if since is not None and all(error.fetched_at != since for error in self.errors):
            found.append(AttemptView(self.attempt, self.worker, since, self.ended_at, self.state.value))
        return found

    def to_dict(self, *, payload: bool = True, tracebacks: bool = True) -> dict[str, Any]:
        """The view as a dict for JSON, with the names of docs/job.md."""
        spec, stored = self.spec, self.partition
        terms = spec.partition
        unique = None
        if spec.unique is not None:
            key, ends = spec.unique, iso(until(spec.unique, self.enqueued_at))
            unique = {"key": key.key, "states": list(key.held_in), "until": ends}
        partition = None
        if terms is not None and stored is not None:
            partition = {
                "key": terms.key,
                "ordered": terms.ordered,
                "most": terms.most,
                "waiting": stored.waiting,
                "before": stored.before,
                "due_at": iso(stored.due),
                "admitted": [f"{one.id} {one.state}" for one in stored.admitted],
            }
        facts = Job.to_dict(self, payload=payload, tracebacks=tracebacks) | {
            "started": self.started,
            "retry": _retry(spec.retry or DEFAULT),
            "unique": unique,
            "partition": partition,
            "version": self.version,
            "payload_size": len(spec.payload),
            "closed": self.closed,
            "attempts": [one.to_dict() for one in self.attempts],
            "acts": [act_facts(act) for act in self.acts],
            "log": [line_facts(line) for line in self.log],
            "steps": [_step(step) for step in self.steps],
        }
        return {name: facts[name] for name in WHOLE if name in facts}


def row_of(job: Job) -> Job:
    """The job as lists show it: without its lease token, checkpoint, payload and result.

    Of its errors it has the last one, without the traceback. Lists are kept for a while by the dashboard.
    """
    return replace(
        job,
        spec=replace(job.spec, payload=b""),
        token=None,
        checkpoint=None,
        result=None,
        errors=tuple(replace(error, traceback="") for error in job.errors[-1:]),
    )


#: The names of a job in a list.
ROW = (
    *("queue", "id", "task", "state", "priority", "attempt", "max_attempts", "enqueued_at", "due_at"),
    *("fetched_at", "ended_at", "worker", "cancel_asked", "progress", "reason", "error", "delivery"),
)
#: All names of a job.
WHOLE = (
    *ROW,
    *("started", "lost", "expires_at", "deadline", "timeout", "retention", "keep_dead", "retry", "unique"),
    *("partition", "tenant", "batch_key", "batch", "members", "flow", "waited", "ran", "headers", "version"),
    *("payload_size", "payload", "payload_base64", "closed", "result", "result_base64", "errors"),
    *("attempts", "acts", "log", "steps"),
)


def act_facts(act: ShownEntry) -> dict[str, Any]:
    """What an operator did to a job, for JSON."""
    entry = act.entry
    return {"at": instant(act.at), "who": entry.who, "act": entry.act, "facts": entry.facts}


def line_facts(line: LogLine) -> dict[str, Any]:
    """A line of a job's log, for JSON."""
    return {"at": instant(line.at), "text": line.text}


def _step(step: StoredStep) -> dict[str, Any]:
    """A step, with the signal that it waits for; then it has no size."""
    signal, key = step.signal or (None, None)
    size = None if step.value is None else step.size
    return {"name": shown_text(step.name), "at": instant(step.at), "size": size, "signal": signal, "key": key}


def _retry(policy: RetryPolicy) -> dict[str, Any]:
    """The policy as data, with durations in seconds."""
    shown = msgspec.to_builtins(policy)
    for name in DURATIONS & shown.keys():
        value = shown[name]
        shown[name] = value / 1000 if isinstance(value, int) else [one / 1000 for one in value]
    return dict(shown)
