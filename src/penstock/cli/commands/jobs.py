"""`penstock jobs`: list, show and explain jobs. Other commands of the group: `job_acts.py`, `one_job.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.faults import INTERRUPTED, Exit
from penstock.cli.formats import age, exact, last_error, progress_text, span
from penstock.cli.job_acts import add_acts
from penstock.cli.job_search import follow_jobs, read_search, run_search, search_options
from penstock.cli.one_job import add_edit, add_log, add_steps, log_line, no_job
from penstock.cli.queue_notes import why_empty
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, facts, note, say, say_lines, table
from penstock.cli.watching import Listing
from penstock.core.changes import until
from penstock.core.formats import format_ms, iso, json_or_base64, seconds, shown_text
from penstock.core.job import TERMINAL, State
from penstock.core.retry import DEFAULT, DURATIONS, RetryPolicy
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.core.job import Job
    from penstock.inspector import AttemptView, JobView, ShownEntry
    from penstock.stores.contract import StoredStep

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
            empty="" if found.jobs else why_empty(session, given["queue"], "no matching jobs"),
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
        say(f"{view.queue}/{view.id} is {view.state} since {exact(view.since)}")
        for reason in view.reasons:
            say(f"  {reason.says}")


add_log(command)
add_acts(command)
add_edit(command)
add_steps(command)


# ── showing ──────────────────────────────────────────────────────────────────────────────────────


def _line(job: Job) -> tuple[str, ...]:
    return (
        job.id,
        job.queue,
        job.task,
        _state(job),
        f"{job.attempt}/{job.spec.max_attempts}",
        age(_when(job)),
        age(job.enqueued_at),
        _note(job),
    )


def _state(job: Job) -> str:
    return f"{job.state} (asked to stop)" if job.cancel_asked and job.state not in TERMINAL else job.state


def _when(job: Job) -> int | None:
    """The relevant instant of the job's state: fetched, ended or due."""
    if job.state == State.RUNNING:
        return job.fetched_at
    return job.run_at if job.ended_at is None else job.ended_at


def _note(job: Job) -> str:
    if job.state == State.RUNNING and job.progress is not None:
        return progress_text(job.progress)
    failed = job.state in (State.RETRYABLE, State.DEAD)
    text = (last_error(job) if failed else job.reason and shown_text(job.reason)) or ""
    return text if len(text) <= 60 else text[:59] + "…"


def _show(job: JobView, limit: int | None) -> None:
    spec = job.spec
    facts(
        [
            ("id", job.id),
            ("queue", job.queue),
            ("task", job.task),
            ("state", _state(job)),
            ("reason", job.reason and shown_text(job.reason)),
            ("attempt", f"{job.attempt} of {spec.max_attempts}"),
            ("lost leases", str(job.lost) if job.lost else None),
            ("priority", str(spec.priority)),
            ("delivery", "at-most-once" if spec.at_most_once else "at-least-once"),
            ("enqueued", exact(job.enqueued_at)),
            ("due", exact(job.run_at)),
            ("fetched", exact(job.fetched_at)),
            ("function", _begun(job)),
            ("ended", exact(job.ended_at)),
            ("waited", span(seconds(job.run_at, job.fetched_at)) or None),
            ("ran", span(seconds(job.fetched_at, job.ended_at)) or None),
            ("expires", exact(job.expires_at)),
            ("deadline", exact(spec.deadline)),
            ("timeout", "none" if spec.timeout is None else span(spec.timeout / 1000)),
            ("retention", _span_or_none(spec.retention)),
            ("kept if dead", None if spec.keep_dead is None else _span_or_none(spec.keep_dead)),
            ("retry", _policy(spec.retry or DEFAULT)),
            ("unique", _unique(job)),
            *_partition(job),
            *_waits(job),
            ("tenant", None if spec.tenant is None else spec.tenant.key),
            ("batch key", None if spec.batch_terms is None else spec.batch_terms.key),
            ("batch", job.batch),
            ("members", ", ".join(job.members) or None),
            ("worker", job.worker),
            ("progress", None if job.progress is None else progress_text(job.progress)),
            *((f"header {name}", value) for name, value in sorted((spec.headers or {}).items())),
        ]
    )  # fmt: skip
    heading = f"payload ({len(spec.payload):,} bytes)"
    if job.closed is not None:
        _show_text(heading, job.closed)
    else:
        _show_data(heading, spec.payload, limit)
    if job.result is not None:
        _show_data("result", job.result, limit)
    if job.steps:
        _show_text(f"steps ({len(job.steps):,})", "\n".join(map(_step, job.steps)))
    if job.log:
        _show_text(f"log ({counted(len(job.log), 'line')})", "\n".join(map(log_line, job.log)))
    if job.acts:
        _show_text("acts of operators", "\n".join(map(_act_line, job.acts)))
    if job.attempts:
        _show_text("attempts", "\n".join(map(_attempt_line, job.attempts)))
    for error in job.errors:
        heading = (
            f"attempt {error.attempt} failed {exact(error.at)}: {error.kind}: {shown_text(error.message)}"
        )
        _show_text(heading, shown_text(error.traceback).rstrip())


def _partition(job: JobView) -> list[tuple[str, str | None]]:
    """The job's partition and, if the job waits in it, the jobs ahead of it and its earliest start."""
    partition, of = job.partition, job.spec.partition
    if partition is None or of is None:
        return []
    terms = "in order" if of.ordered else f"{of.most} at a time"
    rows: list[tuple[str, str | None]] = [("partition", f"{of.key} ({terms}, {partition.waiting} waiting)")]
    if partition.before is not None:
        rows.append(("queued behind", counted(partition.before, "waiting job")))
        rows.append(("waits for", ", ".join(f"{one.id} {one.state}" for one in partition.admitted) or None))
        rows.append(("earliest start", exact(partition.due)))
    return rows


def _waits(job: JobView) -> list[tuple[str, str | None]]:
    """The signals that a suspended job waits for; without one it waits for its due time."""
    if job.state != State.SUSPENDED:
        return []
    waits = [step.signal for step in job.steps if step.value is None and step.signal is not None]
    return [("waits for", f"signal {name}" + (f", key {key}" if key else "")) for name, key in waits]


def _step(step: StoredStep) -> str:
    from penstock.inspector import step_text

    what = "waits for its signal" if step.value is None else f"{step.size:,} bytes"
    return f"{exact(step.at)}  {step_text(step.name) or shown_text(step.name)}  {what}"


def _attempt_line(one: AttemptView) -> str:
    ran = "" if one.ran is None else f" after {span(one.ran)}"
    where = "" if one.worker is None else f", worker {one.worker}"
    error = "" if one.error is None else f": {one.error}"
    return f"{one.attempt}  since {exact(one.fetched_at) or 'unknown'}  {one.outcome}{ran}{where}{error}"


def _act_line(one: ShownEntry) -> str:
    entry = one.entry
    facts = "".join(f" {name}={text}" for name, text in entry.facts.items())
    return f"{exact(one.at)}  {entry.act} by {entry.who}{facts}"


def _begun(job: JobView) -> str | None:
    if job.state != State.RUNNING:
        return None
    return "started" if job.started else "not known to have started"


def _unique(job: Job) -> str | None:
    unique = job.spec.unique
    if unique is None:
        return None
    ends = until(unique, job.enqueued_at)
    return f"{unique.key} while {' or '.join(unique.held_in)}" + (f", until {iso(ends)}" if ends else "")


def _span_or_none(ms: int) -> str:
    return span(ms / 1000) if ms else "none"


def _policy(policy: RetryPolicy) -> str:
    """A retry policy without its defaults, e.g. "exponential, base 0.5s, cap 10s"."""
    terms = msgspec.to_builtins(policy)
    return ", ".join([terms.pop("kind"), *(_term(*one) for one in terms.items())])


def _term(name: str, value: Any) -> str:
    if value is True:
        return name
    if name not in DURATIONS:
        return f"{name} {value:g}"
    delays = [value] if isinstance(value, int) else [*value]
    more = [f"{len(delays) - _STEPS} more"] if len(delays) > _STEPS else []
    return f"{name} {' then '.join([*map(_short, delays[:_STEPS]), *more])}"


def _short(ms: int) -> str:
    return f"{ms / 1000:g}s" if ms < 1000 else format_ms(ms)


def _show_data(name: str, data: bytes, limit: int | None) -> None:
    raw, _ = json_or_base64(data)
    text = repr(data) if raw is None else _json_lines(bytes(raw))
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
