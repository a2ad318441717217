"""One job: where it stands and why, attempts, arguments, errors, logs; and what an operator does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from penstock.core.duration import milliseconds
from penstock.core.errors import ConfigError
from penstock.core.ids import check_queue
from penstock.core.job import QUEUED, TERMINAL, Ref, State
from penstock.inspector import JobAct, JobView, WhyView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.cards import Card
from penstock.web.dashboard.formats import brief, instant_of
from penstock.web.dashboard.json_tree import json_text, stored_bytes, stored_tree
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.related import RelatedJob, related_jobs
from penstock.web.dashboard.shown_keys import reasons_without, shown_keys
from penstock.web.dashboard.undo_tickets import act_with_undo
from penstock.web.dashboard.view import NotFoundError, View, segment

__all__ = ["ACTS", "DOCUMENT", "PAGE", "read_job"]

#: Reads of the store for one job: itself, its partition, its steps, the audit log.
_READS = 5
#: The fields of the form of an act.
_OF_ACTS = {JobAct.RESCHEDULE: ("delay",), JobAct.MOVE: ("to",), JobAct.DISCARD: ("reason",)}
_DUE_LATER = (State.SCHEDULED, State.RETRYABLE)


@dataclass(frozen=True)
class Moment:
    """Something that happened to a job: an instant, a class for its dot, what, and more about it."""

    at: str
    kind: str
    says: str
    more: str = ""
    ran: float | None = None


@dataclass(frozen=True)
class ActButton:
    """A button: the act, its label, and whether the visitor is asked again."""

    act: str
    label: str
    confirm: str = ""


async def show(view: View) -> dict[str, Any]:
    job = await read_job(view)
    address = f"{job.queue}/{job.id}"
    longest = max([one.ran or 0.0 for one in job.attempts], default=0.0)
    keys = shown_keys(job, view.shared.redaction)
    return {
        "title": job.task,
        "job": job,
        "keys": keys,
        "why": await _why(view, job, keys),
        "moments": sorted(_moments(job), key=lambda one: one.at),
        "longest": longest,
        "steps": [(name, one) for one in job.steps if (name := _step_name(one.name))],
        "arguments": stored_tree(job.payload, job.payload_base64, view.shared.redaction),
        "result": stored_tree(job.result, job.result_base64, view.shared.redaction),
        "headers": view.shared.redaction.apply(job.headers),
        "linked": [name for name in job.headers if _is_filter(view, name)],
        "related": await _related(view, job, address),
        "buttons": list(_buttons(State(job.state))),
        "queued": State(job.state) in QUEUED,
        "discardable": State(job.state) in QUEUED | {State.SUSPENDED},
        "editable": State(job.state) in QUEUED | TERMINAL,
        "deletable": State(job.state) is not State.RUNNING,
        "running": job.state == State.RUNNING.value,
    }


async def _why(view: View, job: JobView, keys: Mapping[str, str]) -> Card[list[WhyView]]:
    address = f"{job.queue}/{job.id}"
    found = await view.card(("why", address), lambda: view.inspector.why(address), cost=3)
    return Card(None if found.value is None else reasons_without(found.value, job, keys), found.error)


def _is_filter(view: View, name: str) -> bool:
    """Whether jobs can be filtered by a header of this name."""
    return "=" not in name and not view.shared.redaction.hides(name)


async def _related(view: View, job: JobView, address: str) -> Card[list[RelatedJob]]:
    found = await view.card(("related", address), lambda: related_jobs(view, job), cost=3)
    return Card([one for one in found.value or [] if view.sees(one.queue)], found.error)


async def document(view: View) -> dict[str, Any]:
    """The arguments or the result in full, as text."""
    job, what = await read_job(view), view.part("what")
    kept = {
        "arguments": (job.payload, job.payload_base64),
        "result": (job.result, job.result_base64),
    }
    raw = stored_bytes(*kept.get(what, (None, None)))
    if raw is None:
        raise NotFoundError(f"This job has no {what:.20}.")
    text = await asyncio.to_thread(json_text, raw, view.shared.redaction)  # a second for the largest
    return {"title": what, "job": job, "text": text}


async def read_job(view: View) -> JobView:
    """The job in the path. Raises NotFoundError."""
    queue, id = view.queue, view.id
    found = await view.read(("job", queue, id), lambda: view.inspector.job(f"{queue}/{id}"), cost=_READS)
    if not found:
        says = "It may have ended and been removed after its retention, or been deleted."
        raise NotFoundError(f"There is no job {id} in the queue {queue}. {says}")
    return found[0]


def _step_name(stored: str) -> str:
    """The name of a stored step as its author knows it; "" for what only the flow remembers."""
    kind, mark, name = stored.partition("!")
    if not mark:
        return stored
    shown = {"wait": f"signal {name}", "sleep": "timer", "gather": "jobs", "undo": f"undo of {name}"}.get(
        kind
    )
    return shown if shown and "!" not in name else ""


def _moments(job: JobView) -> Iterator[Moment]:
    yield Moment(job.enqueued_at, "enqueued", "Enqueued")
    coming = State(job.state) not in TERMINAL | {State.RETRYABLE}
    if job.due_at > job.enqueued_at and coming and not job.attempts:
        yield Moment(job.due_at, "scheduled", "Due")
    for one in job.attempts:
        if one.fetched_at is not None:
            by = f"by worker {brief(one.worker)}" if one.worker else ""
            which = f"Attempt {one.attempt} leased" if one.attempt else "Leased"
            yield Moment(one.fetched_at, "running", which, by)
        if one.ended_at is not None and one.outcome == "failed":
            yield Moment(one.ended_at, "failed", f"Attempt {one.attempt} failed", one.error or "", one.ran)
    if State(job.state) is State.RETRYABLE:
        yield Moment(job.due_at, "retryable", f"Attempt {job.attempt + 1} due")
    for act in job.acts:
        facts = " ".join(f"{name}={value}" for name, value in act.facts.items())
        yield Moment(act.at, "act", f"{act.act} by {act.who}", facts)
    if job.ended_at is not None:
        ran = job.ran if job.state == State.COMPLETED.value else None
        errors = [one.error for one in job.attempts[-1:]]  # the line before this one says it
        why = "" if job.reason in errors else job.reason or ""
        at = max([job.ended_at, *(one.ended_at for one in job.attempts if one.ended_at)])  # by two clocks
        yield Moment(at, job.state, job.state.capitalize(), why, ran)


def _buttons(state: State) -> Iterator[ActButton]:
    if state in _DUE_LATER:
        yield ActButton(JobAct.RUN_NOW.value, "Run now")
    if state in TERMINAL or state is State.PARKED:
        yield ActButton(JobAct.RETRY.value, "Retry")
    if state is State.RUNNING:
        yield ActButton(JobAct.CANCEL.value, "Cancel", "Ask the running attempt to stop?")
    elif state not in TERMINAL:
        yield ActButton(JobAct.CANCEL.value, "Cancel", "Cancel this job?")


async def act_on_job(view: View) -> Response:
    """Do an act to the job."""
    try:
        act = JobAct(view.part("act"))
    except ValueError:
        raise NotFoundError("There is no such act on a job.") from None
    ref = Ref(view.queue, view.id)
    given = {name: view.form.get(name) for name in _OF_ACTS.get(act, ()) if view.form.get(name)}
    if act is JobAct.MOVE and not view.may("operate", check_queue(given.get("to", ""))):
        return view.done(f"You have no right to operate {given['to']}.", _path(ref), failed=True)
    delay = _delay(given.get("delay") or "0s", view.now)
    (change,), undo = await act_with_undo(view, act, [ref], {**given, "delay": delay})
    failed = change.outcome in ("refused", "missing")
    if not failed:
        await view.audit(f"jobs.{act.value}", f"{ref.queue}/{ref.id}", given)
    says = f"Job {ref.id}: {change.says}."
    if failed or act not in (JobAct.DELETE, JobAct.MOVE):
        return view.done(says, _path(ref), failed=failed, undo=undo)
    view.form.drop("back")  # it is not there any more
    return view.done(says, "/jobs" if act is JobAct.DELETE else _path(Ref(given["to"], ref.id)), undo=undo)


def _delay(text: str, now: int) -> int:
    """The delay (ms) of "5m", or until an instant. Raises ConfigError."""
    if "T" not in text:
        return milliseconds(text, what="delay")
    at = instant_of(text)
    if at is None or datetime.fromisoformat(text).utcoffset() is None:
        raise ConfigError(f"{text!r:.60} is neither a delay, as 5m, nor an instant, as 2026-11-20T08:30:00Z")
    return max(0, at - now)


def _path(ref: Ref) -> str:
    return f"/jobs/{segment(ref.queue)}/{segment(ref.id)}"


PAGE = DashboardPage(name="job", path="/jobs/{queue}/{id}", title="Job", show=show, refresh="always")
DOCUMENT = DashboardPage(
    name="document",
    path="/jobs/{queue}/{id}/document/{what}",
    title="Document",
    show=document,
    refresh="never",
)
ACTS = (DashboardAct(path="/jobs/{queue}/{id}/act/{act}", do=act_on_job, right=Right.OPERATE),)
