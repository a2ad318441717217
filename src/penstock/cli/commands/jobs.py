"""`penstock jobs`: list, show and change jobs."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.faults import INTERRUPTED, Exit
from penstock.cli.job_acts import add_acts
from penstock.cli.job_addresses import no_job
from penstock.cli.job_edit import add_edit
from penstock.cli.job_following import follow_jobs
from penstock.cli.job_log import add_log, log_line
from penstock.cli.job_search import read_search, run_search, search_options
from penstock.cli.queue_notes import why_empty
from penstock.cli.session import Command, Session
from penstock.cli.short_forms import age, progress_text, span
from penstock.cli.show import emit, facts, note, say, say_lines, table
from penstock.cli.watching import Listing
from penstock.core.duration import format_ms
from penstock.core.job import State
from penstock.core.retry import DURATIONS
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.inspector import (
        ActView,
        AttemptView,
        JobRow,
        JobView,
        UniqueView,
    )
    from penstock.inspector.job_views import StepView

__all__ = ["command"]

#: Maximum number of characters shown of a payload or result without --full.
_SHOWN = 4_000
#: Maximum number of steps shown of a retry policy.
_STEPS = 10


@click.group("jobs")
def command() -> None:
    """List, search and change jobs.

    A job is named by its id, or by queue/id if two queues have the same id.
    """


@command.command("list", cls=Listing)
@search_options
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print new jobs as they are enqueued, or with --state of ended jobs as they end, until Ctrl-C. "
    "With --json: one JSON document per line.",
)
def list_(after: str | None, limit: int, follow: bool, **given: Any) -> int:
    """List or search jobs, newest first.

    A text is searched in the stored JSON of the arguments, and in errors as "Kind: message". Ctrl-C shows
    what was found so far.
    """
    session = Session.current()
    search = read_search(**given)
    if follow:
        follow_jobs(search)
        return Exit.OK
    found = session.run(lambda inspector: run_search(inspector, search, after, limit))
    if session.json:
        emit({"jobs": found.jobs, "next": found.next, "away": found.away})
    else:
        table(
            ("ID", "QUEUE", "TASK", "STATE", "ATTEMPT", "WHEN", "ENQUEUED", "NOTE"),
            [_line(job) for job in found.jobs],
            empty="" if found.jobs else why_empty(session, given["queues"], "no matching jobs"),
            spare=("ENQUEUED", "ATTEMPT", "NOTE", "WHEN", "QUEUE"),
        )
    if found.away:
        note(f"not searched, because their part of the store does not answer: {', '.join(found.away)}")
    if found.stopped:
        rest = "" if found.next is None else f"; continue with --after {found.next}"
        note(f"stopped: not all jobs were searched{rest}")
        return INTERRUPTED
    if found.next is not None and not session.json:
        note(f"more jobs match: continue with --after {found.next}")
    return Exit.UNAVAILABLE if found.away else Exit.OK


@command.command("show", cls=Command)
@click.argument("address", metavar="ID")
@click.option(
    "--full",
    is_flag=True,
    help=f"Show the payload and the result in full, not only {_SHOWN:,} characters of each.",
)
def show(address: str, full: bool) -> None:
    """Show all details of a job."""
    session = Session.current()
    views = session.run(lambda i: i.job(address))
    if not views:
        raise no_job(address)
    if session.json:
        emit({"jobs": views})
        return
    for n, view in enumerate(views):
        if n:
            say()
        _show(view, None if full else _SHOWN)


@command.command("why", cls=Command)
@click.argument("address", metavar="ID")
def why(address: str) -> None:
    """Show why a job does not run now.

    Each line is a reason, the decisive one first: a pause, a limit, a rate, missing workers, a partition,
    jobs ahead of it, a batch, a signal, a gather, its expiry.
    """
    session = Session.current()
    views = session.run(lambda i: i.why(address))
    if not views:
        raise no_job(address)
    if session.json:
        emit({"jobs": views})
        return
    for view in views:
        say(f"{view.queue}/{view.id} is {view.state} since {_instant(view.since)}")
        for reason in view.reasons:
            say(f"  {reason.says}")


add_log(command)
add_acts(command)
add_edit(command)


# ── showing ──────────────────────────────────────────────────────────────────────────────────────


def _line(job: JobRow) -> tuple[str, ...]:
    return (
        job.id,
        job.queue,
        job.task,
        _state(job),
        f"{job.attempt}/{job.max_attempts}",
        age(_when(job)),
        age(job.enqueued_at),
        _note(job),
    )


def _state(job: JobRow) -> str:
    return "running (asked to stop)" if job.cancel_asked and job.state == State.RUNNING else job.state


def _when(job: JobRow) -> str | None:
    """The relevant instant of the job's state: fetched, ended or due."""
    if job.state == State.RUNNING:
        return job.fetched_at
    return job.ended_at or job.due_at


def _note(job: JobRow) -> str:
    if job.state == State.RUNNING and job.progress is not None:
        return progress_text(job.progress)
    text = (job.error if job.state in (State.RETRYABLE, State.DEAD) else job.reason) or ""
    return text if len(text) <= 60 else text[:59] + "…"


def _show(job: JobView, limit: int | None) -> None:
    facts(
        [
            ("id", job.id),
            ("queue", job.queue),
            ("task", job.task),
            ("state", _state(job)),
            ("reason", job.reason),
            ("attempt", f"{job.attempt} of {job.max_attempts}"),
            ("lost leases", str(job.lost) if job.lost else None),
            ("priority", str(job.priority)),
            ("delivery", job.delivery),
            ("enqueued", _instant(job.enqueued_at)),
            ("due", _instant(job.due_at)),
            ("fetched", _instant(job.fetched_at)),
            ("function", _begun(job)),
            ("ended", _instant(job.ended_at)),
            ("waited", span(job.waited) or None),
            ("ran", span(job.ran) or None),
            ("expires", _instant(job.expires_at)),
            ("deadline", _instant(job.deadline)),
            ("timeout", "none" if job.timeout is None else span(job.timeout)),
            ("retention", _span_or_none(job.retention)),
            ("kept if dead", None if job.keep_dead is None else _span_or_none(job.keep_dead)),
            ("retry", _policy(job.retry)),
            ("unique", None if job.unique is None else _unique(job.unique)),
            *_partition(job),
            *_waits(job),
            ("tenant", job.tenant),
            ("batch key", job.batch_key),
            ("batch", job.batch),
            ("members", ", ".join(job.members) or None),
            ("worker", job.worker),
            ("progress", None if job.progress is None else progress_text(job.progress)),
            *((f"header {name}", value) for name, value in sorted(job.headers.items())),
        ]
    )  # fmt: skip
    if job.closed is not None:
        _show_text(f"payload ({job.payload_size:,} bytes)", job.closed)
    else:
        _show_data(f"payload ({job.payload_size:,} bytes)", job.payload, job.payload_base64, limit)
    if job.result is not None or job.result_base64 is not None:
        _show_data("result", job.result, job.result_base64, limit)
    if job.steps:
        _show_text(f"steps ({len(job.steps):,})", "\n".join(map(_step, job.steps)))
    if job.log:
        _show_text(f"log ({counted(len(job.log), 'line')})", "\n".join(map(log_line, job.log)))
    if job.acts:
        _show_text("acts of operators", "\n".join(map(_act_line, job.acts)))
    if job.attempts:
        _show_text("attempts", "\n".join(map(_attempt_line, job.attempts)))
    for error in job.errors:
        heading = f"attempt {error.attempt} failed {_instant(error.at)}: {error.kind}: {error.message}"
        _show_text(heading, error.traceback.rstrip())


def _partition(job: JobView) -> list[tuple[str, str | None]]:
    """The job's partition and, if the job waits in it, the jobs ahead of it and its earliest start."""
    partition = job.partition
    if partition is None:
        return []
    terms = "in order" if partition.ordered else f"{partition.most} at a time"
    rows: list[tuple[str, str | None]] = [
        ("partition", f"{partition.key} ({terms}, {partition.waiting} waiting)")
    ]
    if partition.before is not None:
        rows.append(("queued behind", counted(partition.before, "waiting job")))
        rows.append(("waits for", ", ".join(partition.admitted) or None))
        rows.append(("earliest start", _instant(partition.due_at)))
    return rows


def _waits(job: JobView) -> list[tuple[str, str | None]]:
    """The signals that a suspended job waits for; without one it waits for its due time."""
    waits = [step for step in job.steps if step.size is None]
    if job.state != State.SUSPENDED:
        return []
    return [
        ("waits for", f"signal {step.signal}" + (f", key {step.key}" if step.key else "")) for step in waits
    ]


def _step(step: StepView) -> str:
    what = "waits for its signal" if step.size is None else f"{step.size:,} bytes"
    return f"{_instant(step.at)}  {step.name}  {what}"


def _attempt_line(one: AttemptView) -> str:
    ran = "" if one.ran is None else f" after {span(one.ran)}"
    where = "" if one.worker is None else f", worker {one.worker}"
    error = "" if one.error is None else f": {one.error}"
    return f"{one.attempt}  since {_instant(one.fetched_at) or 'unknown'}  {one.outcome}{ran}{where}{error}"


def _act_line(one: ActView) -> str:
    facts = "".join(f" {name}={text}" for name, text in one.facts.items())
    return f"{_instant(one.at)}  {one.act} by {one.who}{facts}"


def _begun(job: JobView) -> str | None:
    if job.state != State.RUNNING:
        return None
    return "started" if job.started else "not known to have started"


def _unique(unique: UniqueView) -> str:
    until = "" if unique.until is None else f", until {unique.until}"
    return f"{unique.key} while {' or '.join(unique.states)}{until}"


def _span_or_none(seconds: float) -> str:
    return span(seconds) if seconds else "none"


def _policy(policy: dict[str, Any]) -> str:
    """A retry policy without its defaults, e.g. "exponential, base 0.5s, cap 10s"."""
    return ", ".join([policy["kind"], *(_term(*one) for one in policy.items() if one[0] != "kind")])


def _term(name: str, value: Any) -> str:
    if value is True:
        return name
    if name not in DURATIONS:
        return f"{name} {value:g}"
    delays = value if isinstance(value, list) else [value]
    more = [f"{len(delays) - _STEPS} more"] if len(delays) > _STEPS else []
    return f"{name} {' then '.join([*map(_short, delays[:_STEPS]), *more])}"


def _short(seconds: float) -> str:
    return f"{seconds:g}s" if seconds < 1 else format_ms(round(seconds * 1000))


def _instant(iso: str | None) -> str | None:
    return None if iso is None else f"{iso} ({age(iso)})"


def _show_data(name: str, data: Any, base64: str | None, limit: int | None) -> None:
    text = _json_lines(bytes(data)) if data is not None else repr(b64decode(base64 or ""))
    if limit is not None and len(text) > limit:
        text = text[:limit] + f"… ({len(text) - limit:,} more characters: --full)"
    _show_text(name, text)


def _json_lines(data: bytes) -> str:
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):  # nested too deeply, or with numbers too long, for Python
        return msgspec.json.format(data, indent=2).decode()


def _show_text(heading: str, text: str) -> None:
    """Print a heading, and lines below it."""
    say()
    say(heading)
    if text:
        say_lines("\n".join(f"  {line}" for line in text.split("\n")))
