"""One job: where it stands and why, attempts, arguments, errors, logs; and what an operator does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowNode
from penstock.core.formats import milliseconds, ms_of, seconds, shown_text
from penstock.core.ids import check_queue
from penstock.core.job import QUEUED, TERMINAL, Ref, State
from penstock.inspector import JobAct, JobView, WhyView, step_text
from penstock.inspector.job_acts import every_state
from penstock.web.dashboard.formats import brief
from penstock.web.dashboard.json_tree import HIDDEN, Redaction, hidden_texts, json_text, json_tree
from penstock.web.dashboard.undo_tickets import act_with_undo
from penstock.web.dashboard.view import Card, DashboardAct, DashboardPage, NotFoundError, View, segment

# ── keys that the visitor may see ────────────────────────────────────────────────────────────────

#: A hidden value of this many characters is found also in a part of a key.
_LONG = 4


def shown_keys(job: JobView, redaction: Redaction) -> dict[str, str]:
    """The keys of a job by name. A key with a hidden argument is hidden."""
    spec = job.spec
    known = {
        "Unique key": spec.unique,
        "Tenant": spec.tenant,
        "Partition": spec.partition,
        "Batch key": spec.batch_terms,
    }
    keys = {name: one.key for name, one in known.items() if one is not None and one.key}
    if not keys:
        return {}
    hidden = hidden_texts(spec.payload, redaction)
    return {name: HIDDEN if _tells(name, key, hidden) else key for name, key in keys.items()}


def _tells(name: str, key: str, hidden: Sequence[str] | None) -> bool:
    """Whether somebody who sees this key may find one of these values. None: they are unknown."""
    if hidden is None or not hidden:
        return hidden is None
    if name == "Unique key" or key.startswith("#"):  # a hash: somebody would try all values
        return True
    return any(one == key or (len(one) >= _LONG and one in key) for one in hidden)


def reasons_without(found: Sequence[WhyView], job: JobView, shown: Mapping[str, str]) -> list[WhyView]:
    """Why a job waits, without the key of its partition if that is hidden."""
    partition = job.spec.partition
    if partition is None or shown.get("Partition") == partition.key:
        return list(found)
    key = repr(partition.key)
    return [
        replace(one, reasons=[replace(it, says=it.says.replace(key, HIDDEN)) for it in one.reasons])
        for one in found
    ]


#: Jobs that are named of each kind, and nodes that are read of a flow.
_MOST, _NODES = 8, 200


# ── related jobs ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RelatedJob:
    """A job, and what it is to the job of the page."""

    relation: str
    queue: str
    id: str
    task: str
    state: str = ""


async def related_jobs(view: View, job: JobView) -> list[RelatedJob]:
    """The nearest jobs of the flow, the batch and the partition, also those that the visitor may not read:
    the answer is shared with other visitors."""
    found = [RelatedJob("member", job.queue, id, "") for id in job.members[:_MOST]]
    if job.batch is not None:
        found.append(RelatedJob("in the batch", job.queue, job.batch, ""))
    if job.spec.flow is not None:
        flow = job.spec.flow
        nodes = await view.inspector.flows.flow_nodes(f"{flow.queue}/{flow.id}", limit=_NODES)
        found += _neighbours(nodes, job.ref)
    if job.partition is not None:
        held = [one for one in job.partition.admitted[:_MOST] if one.id != job.id]
        found += [RelatedJob("holds its partition", one.queue, one.id, job.task, one.state) for one in held]
    return found


def _neighbours(nodes: list[FlowNode], of: Ref) -> list[RelatedJob]:
    """The nodes before and after a job. A join between them has no job, and is passed over."""
    me = next((node for node in nodes if node.job == of), None)
    if me is None:
        return []
    before = [node for node in nodes if me.index in node.next]
    after = [node for node in nodes if node.index in me.next]
    pairs = [("before it in the flow", one) for one in before[:_MOST]]
    pairs += [("after it in the flow", one) for one in after[:_MOST]]
    return [
        RelatedJob(relation, node.job.queue, node.job.id, node.task, node.state)
        for relation, node in pairs
        if node.job is not None
    ]


# ── the page ─────────────────────────────────────────────────────────────────────────────────────

#: Reads of the store for one job: itself, its partition, its steps, the audit log.
_READS = 5
#: The fields of the form of an act.
_OF_ACTS = {
    JobAct.RESCHEDULE: ("delay",),
    JobAct.MOVE: ("to",),
    JobAct.DISCARD: ("reason",),
    JobAct.COMPLETE: ("result",),
}
_DUE_LATER = (State.SCHEDULED, State.RETRYABLE)


@dataclass(frozen=True)
class Moment:
    """Something that happened to a job: an instant, a class for its dot, what, and more about it."""

    at: int
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
    spec = job.spec
    keys = shown_keys(job, view.shared.redaction)
    return {
        "title": job.task,
        "job": job,
        "keys": keys,
        "why": await _why(view, job, keys),
        "moments": sorted(_moments(job), key=lambda one: one.at),
        "longest": max([one.ran or 0.0 for one in job.attempts], default=0.0),
        "waited": seconds(job.run_at, job.fetched_at),
        "ran": seconds(job.fetched_at, job.ended_at),
        "timeout": seconds(0, spec.timeout),
        "retention": spec.retention / 1000,
        "delivery": "at-most-once" if spec.at_most_once else "at-least-once",
        "steps": [(name, one) for one in job.steps if (name := step_text(one.name))],
        "arguments": json_tree(job.spec.payload, view.shared.redaction),
        "result": None if job.result is None else json_tree(job.result, view.shared.redaction),
        "headers": view.shared.redaction.apply(dict(job.spec.headers or {})),
        "linked": [name for name in job.spec.headers or {} if _is_filter(view, name)],
        "related": await _related(view, job, address),
        "buttons": [one for one in _buttons(job.state) if one.act == "cancel" or view.can("CHANGE")],
        "queued": job.state in QUEUED,
        "discardable": job.state in QUEUED | {State.SUSPENDED},
        "completable": job.state in every_state(JobAct.COMPLETE),
        "editable": job.state in QUEUED | TERMINAL,
        "deletable": job.state is not State.RUNNING,
        "running": job.state is State.RUNNING,
    }


async def _why(view: View, job: JobView, keys: Mapping[str, str]) -> Card[list[WhyView]]:
    address = f"{job.queue}/{job.id}"
    found = await view.card(("why", address), lambda: view.inspector.why(address), cost=3)
    return found if found.value is None else Card(reasons_without(found.value, job, keys))


def _is_filter(view: View, name: str) -> bool:
    """Whether jobs can be filtered by a header of this name."""
    return "=" not in name and not view.shared.redaction.hides(name)


async def _related(view: View, job: JobView, address: str) -> Card[list[RelatedJob]]:
    found = await view.card(("related", address), lambda: related_jobs(view, job), cost=3)
    return Card([one for one in found.value or [] if view.sees(one.queue)], found.error)


async def document(view: View) -> dict[str, Any]:
    """The arguments or the result in full, as text."""
    job, what = await read_job(view), view.part("what")
    raw = {"arguments": job.spec.payload, "result": job.result}.get(what)
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


def _moments(job: JobView) -> Iterator[Moment]:
    yield Moment(job.enqueued_at, "enqueued", "Enqueued")
    coming, attempts = job.state not in TERMINAL | {State.RETRYABLE}, job.attempts
    if job.run_at > job.enqueued_at and coming and not attempts:
        yield Moment(job.run_at, "scheduled", "Due")
    for one in attempts:
        if one.fetched_at is not None:
            by = f"by worker {brief(one.worker)}" if one.worker else ""
            which = f"Attempt {one.attempt} started" if one.attempt else "Started"
            yield Moment(one.fetched_at, "running", which, by)
        if one.ended_at is not None and one.outcome == "failed":
            yield Moment(one.ended_at, "failed", f"Attempt {one.attempt} failed", one.error or "", one.ran)
    if job.state is State.RETRYABLE:
        yield Moment(job.run_at, "retryable", f"Attempt {job.attempt + 1} due")
    for act in job.acts:
        facts = " ".join(f"{name}={value}" for name, value in act.entry.facts.items())
        yield Moment(act.at, "act", f"{act.entry.act} by {act.entry.who}", facts)
    if job.ended_at is not None:
        ran = seconds(job.fetched_at, job.ended_at) if job.state is State.COMPLETED else None
        errors = [one.error for one in attempts[-1:]]  # the line before this one says it
        reason = shown_text(job.reason or "")
        at = max([job.ended_at, *(one.ended_at for one in attempts if one.ended_at)])  # by two clocks
        yield Moment(at, job.state, job.state.capitalize(), "" if reason in errors else reason, ran)


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
    if act is JobAct.MOVE and not view.may(act, check_queue(given.get("to", ""))):
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
    at = ms_of(text)
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
ACTS = (DashboardAct(path="/jobs/{queue}/{id}/act/{act}", do=act_on_job, act=JobAct.RETRY),)
