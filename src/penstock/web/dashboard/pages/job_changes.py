"""Change several jobs: those that are selected in the list, or all that match its filter.

The page is the first of two steps: it says what would be changed, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.responses import RedirectResponse, Response

from penstock.core.errors import ConfigError
from penstock.core.formats import milliseconds
from penstock.core.ids import check_queue
from penstock.core.job import Job, Ref, State
from penstock.inspector import Change, JobAct, UndoStep, filter_texts, parse_address
from penstock.inspector.job_acts import START_AGAIN, every_state, usual_states
from penstock.inspector.job_filters import is_everything
from penstock.stores.contract import JobFilter
from penstock.web.dashboard.forms import FormError
from penstock.web.dashboard.job_filters import PARAMETERS, allowed_filter, filter_asked, terms
from penstock.web.dashboard.pages.jobs import list_jobs, number_asked
from penstock.web.dashboard.pulse import totals
from penstock.web.dashboard.undo_tickets import UndoTickets, act_with_undo
from penstock.web.dashboard.view import DashboardAct, DashboardPage, View, card, segment

#: The most jobs that are changed by their names; more of them are a filter.
_MOST_SELECTED = 200
_SAMPLE = 10


@dataclass(frozen=True)
class Words:
    """An act in words: its label, what it has done, and what it means."""

    label: str
    done: str
    says: str


WORDS = {
    JobAct.RETRY: Words("Retry", "retried", "They become available now, with all attempts."),
    JobAct.RUN_NOW: Words("Run now", "made available", "They become available now instead of later."),
    JobAct.RESCHEDULE: Words("Reschedule", "rescheduled", "They get another due time."),
    JobAct.CANCEL: Words("Cancel", "cancelled", "Running ones are asked to stop."),
    JobAct.DELETE: Words("Delete", "deleted", "They are removed with their errors and results."),
    JobAct.DUPLICATE: Words("Duplicate", "duplicated", "A copy of each is enqueued under a new id."),
    JobAct.DISCARD: Words("Discard", "discarded", "They become dead without another attempt."),
    JobAct.COMPLETE: Words("Complete", "completed", "They end as completed, without another attempt."),
    JobAct.MOVE: Words("Move", "moved", "They wait in the other queue, due as before, with their attempts."),
}
#: Acts whose button is red.
_HARMFUL = (JobAct.CANCEL, JobAct.DELETE, JobAct.DISCARD)


@dataclass(frozen=True)
class JobCount:
    """What a filter selects. `count`: so far, if `next` is where the count continues."""

    count: int
    sample: list[Job]
    next: str | None = None
    seen: int = 0
    total: int = 0


async def show(view: View) -> dict[str, Any] | Response:
    if view.asked("act") not in set(JobAct):
        return RedirectResponse(view.link("/jobs"), 303)
    act = _act(view)
    values: dict[str, Any] = {
        "title": f"{WORDS[act].label} jobs",
        "act": act.value,
        "words": WORDS[act],
        "harmful": act in _HARMFUL,
        "starts_again": act in START_AGAIN,
        "back": view.link("/jobs", **_without(view, "act", "job", "after", "seen", "found")),
        "queue_names": [queue.name for queue in await view.queues() if view.may(act, queue.name)],
        "selected": None,
        "filter": None,
        "refused": "",
    }
    try:
        if view.all_asked("job"):
            refs = _selected(view.all_asked("job"), view, act)
            return {**values, "selected": await card(view.inspector.rows(refs))}
        filter = await _filter(view, act)
    except ConfigError as error:
        return {**values, "refused": str(error)}
    pinned = _pinned(view, filter)
    return {
        **values,
        "filter": pinned,
        "terms": [term.says for term in terms(view, filter)],
        "send_to": view.link("/jobs/change", act=act.value, **filter_texts(pinned)),
        "dry_run": await card(_dry_run(view, filter, pinned)),
        "counted": number_asked(view, "found"),
        "searched": number_asked(view, "seen"),
    }


async def _dry_run(view: View, filter: JobFilter, pinned: JobFilter) -> JobCount:
    """Count the jobs of a filter: by the counters of the queues if they know, else by a search."""
    if filter == JobFilter(filter.queues, filter.states):
        counts = totals([q for q in await view.queues() if not filter.queues or q.name in filter.queues])
        n = sum(count for state, count in counts.items() if not filter.states or state in filter.states)
        return JobCount(n, (await list_jobs(view, pinned, order="newest", limit=_SAMPLE)).jobs)
    found = await list_jobs(view, pinned, order="newest", limit=None)
    return JobCount(len(found.jobs), found.jobs[:_SAMPLE], found.next, found.seen, found.total)


# ── what is selected ─────────────────────────────────────────────────────────────────────────────


def _act(view: View) -> JobAct:
    try:
        return JobAct(view.asked("act") or view.form.get("act"))
    except ValueError:
        raise ConfigError("Choose what to do with the jobs.") from None


async def _filter(view: View, act: JobAct) -> JobFilter:
    """The filter of the request, for states that the act changes and queues that the visitor may change.

    Raises ConfigError if it selects everything, or nothing.
    """
    filter = filter_asked(view)
    if not filter.states:
        filter = replace(filter, states=usual_states(act))
    elif not (states := tuple(state for state in filter.states if state in _possible(act))):
        named = " or ".join(state.value for state in filter.states)
        raise ConfigError(f"{WORDS[act].label} does nothing to {named} jobs.")
    else:
        filter = replace(filter, states=states)
    if is_everything(act, filter) and not view.all_asked("not-queue"):
        raise ConfigError(
            f"This would {act.value} every job: choose a queue, a state, a task, a text or a time first."
        )
    allowed = await allowed_filter(view, filter, act)
    if allowed is None:
        raise FormError(403, "You have no right to change jobs of these queues.")
    return allowed


def _pinned(view: View, filter: JobFilter) -> JobFilter:
    """The filter for jobs that exist by now: later ones are not in the count."""
    if filter.enqueued.until is not None:
        return filter
    return replace(filter, enqueued=replace(filter.enqueued, until=view.now + 1))


def _possible(act: JobAct) -> tuple[State, ...]:
    """The states of jobs that the act changes."""
    if act is JobAct.RUN_NOW:
        return usual_states(act)
    return tuple(state for state in every_state(act) if act is not JobAct.RETRY or state is not State.RUNNING)


def _selected(addresses: Iterable[str], view: View, act: JobAct) -> list[Ref]:
    """The jobs that are named, all of which the visitor may change."""
    refs = list(dict.fromkeys(parse_address(address) for address in addresses))
    if len(refs) > _MOST_SELECTED:
        raise ConfigError(f"Select at most {_MOST_SELECTED} jobs, or all that match a filter.")
    found = [ref for ref in refs if isinstance(ref, Ref)]
    if len(found) != len(refs):
        raise ConfigError("A selected job needs its queue: queue/id.")
    for ref in found:
        if not view.may(act, ref.queue):
            raise FormError(403, f"You have no right to change jobs of the queue {ref.queue}.")
    return found


def _without(view: View, *names: str) -> dict[str, Any]:
    """The query without these parameters."""
    query: dict[str, Any] = {}
    for name, value in view.request.query_params.multi_items():
        if name not in names:
            query.setdefault(name, []).append(value)
    return query


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────


async def change(view: View) -> Response:
    """Do the act to the selected jobs, or start it as a bulk act on all that match."""
    act = _act(view)
    arguments = _arguments(view, act)
    if jobs := view.form.all("job"):
        return await _change_selected(view, act, _selected(jobs, view, act), arguments)
    if not any(view.asked(name) for name in PARAMETERS):
        raise ConfigError("Select jobs, or choose a filter first.")
    filter = _pinned(view, await _filter(view, act))
    bulk = await view.inspector.bulk.start(
        act, filter, by=view.visitor.name, within=view.queues_for(act), **arguments
    )
    view.shared.bulk_steps.wake()
    return view.done("It runs in the background, also if you close this page.", "/", to=f"/bulk/{bulk.id}")


async def _change_selected(view: View, act: JobAct, refs: list[Ref], arguments: dict[str, Any]) -> Response:
    changes, undo = await act_with_undo(view, act, refs, arguments)
    done = [f"{change.queue}/{change.id}" for change in changes if change.outcome in ("done", "asked")]
    if done:
        await view.audit(
            f"jobs.{act.value}", done, {name: str(one) for name, one in arguments.items() if one}
        )
    return view.done(_outcome(changes, WORDS[act].done), "/jobs", failed=not done, undo=undo)


def _outcome(changes: list[Change], done: str) -> str:
    """What became of the jobs, in a line: the numbers, and why jobs were skipped."""
    counts = Counter(change.outcome for change in changes)
    if len(changes) == 1:
        return f"Job {changes[0].id}: {changes[0].says}."
    parts = [f"{counts['done']:,} {done}"] if counts["done"] else []
    parts += [f"{counts['asked']:,} asked to stop"] if counts["asked"] else []
    reasons = Counter(change.says for change in changes if change.outcome in ("refused", "missing"))
    parts += [f"{n:,} {why}" for why, n in reasons.most_common(3)]
    return "; ".join(parts) + "."


def _arguments(view: View, act: JobAct) -> dict[str, Any]:
    """The arguments of the act in the form."""
    if act in START_AGAIN:
        return {"spare_at_most_once": view.form.get("spare") == "on"}
    if act is JobAct.RESCHEDULE:
        return {"delay": milliseconds(view.form.get("delay") or "0s", what="Due in")}
    if act is JobAct.DISCARD:
        return {"reason": view.form.get("reason")[:200]}
    if act is JobAct.COMPLETE:
        return {"result": view.form.get("result"), "reason": view.form.get("reason")[:200]}
    if act is JobAct.MOVE:
        to = check_queue(view.form.get("to"))
        if not view.may(act, to):
            raise FormError(403, f"You have no right to change jobs of the queue {to}.")
        return {"to": to}
    return {}


async def undo(view: View) -> Response:
    """Take an act on selected jobs back."""
    steps = await UndoTickets(view.shared.store).take(view.part("ticket"))
    if not steps:
        return view.done("It is too late to undo this.", "/jobs", failed=True)
    for step in steps:
        if not all(view.may(step.act, queue) for queue in (step.queue, step.to or step.queue)):
            raise FormError(403, f"You have no right to change jobs of the queue {step.queue}.")
    changes = await view.inspector.undo(steps)
    undone = [f"{change.queue}/{change.id}" for change in changes if change.outcome == "done"]
    if undone:
        await view.audit("jobs.undo", undone, {"by": steps[0].act.value})
    says = f"Undone for {len(undone):,} of {len(steps):,} jobs." if len(steps) > 1 else "Undone."
    others = Counter(change.says for change in changes if change.outcome != "done")
    says = " ".join([says] * bool(undone) + [f"{n:,} {why}." for why, n in others.most_common(3)])
    return view.done(says, "/jobs", failed=not undone, to=_moved_back(view, steps[0]) if undone else "")


def _moved_back(view: View, step: UndoStep) -> str:
    """The page of the job in its old queue, if the undo was asked for on its page in the new one."""
    page = view.job_link(step.queue, step.id)
    if step.act is not JobAct.MOVE or urlsplit(view.form.get("back")).path != page:
        return ""
    return f"/jobs/{segment(step.to)}/{segment(step.id)}"


PAGE = DashboardPage(name="change", path="/jobs/change", title="Change jobs", show=show, refresh="never")
ACTS = (
    DashboardAct(path="/jobs/change", do=change, act="bulk.start", somewhere=True),
    DashboardAct(path="/jobs/undo/{ticket}", do=undo, act="undo", somewhere=True),
)
