"""The list of queues; and one queue: its sizes, why it waits, its limits and tasks, and what an operator does
to it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.core.errors import ConfigError
from penstock.core.formats import format_ms
from penstock.core.limits import LIMIT_NAMES, LimitChange, OnFull
from penstock.inspector import QueueView
from penstock.inspector.queue_views import limit_values
from penstock.web.dashboard.rows import queue_rows
from penstock.web.dashboard.shared_reads import FRESH_STATISTICS
from penstock.web.dashboard.statistics_charts import RANGES, activity_charts, range_asked
from penstock.web.dashboard.view import DashboardAct, DashboardPage, NotFoundError, View, card, segment

#: Rows of the table; others are found by their names.
_MOST = 500


async def show(view: View) -> dict[str, Any]:
    part = view.asked("name").lower()
    queues = await view.queues()
    shown = [queue for queue in queues if part in queue.name.lower()]
    rows = queue_rows(view, shown)
    return {
        "rows": rows[:_MOST],
        "more": max(0, len(rows) - _MOST),
        "part": view.asked("name"),
        "all": len(queues),
    }


PAGE = DashboardPage(name="queues", path="/queues", title="Queues", show=show, navigation="Queues", key="q")


# ── one queue ────────────────────────────────────────────────────────────────────────────────────

#: The fields of the form: limit, label, what it means.
_FIELDS = (
    ("max_running", "Running at most", "Jobs of this queue that run at the same time, across all workers."),
    ("rate", "Rate of starts", "For example 200/s, 100/min or 5/2s."),
    ("burst", "Burst", "How many jobs may start at once under the rate."),
    ("max_size", "Size at most", "Further enqueues are refused, or wait."),
    ("keep_finished", "Finished kept", "Number of completed jobs kept, and of cancelled ones."),
    ("keep_finished_for", "Finished kept for", "For example 10m or 2d; it only shortens retention."),
    ("keep_dead", "Dead kept", "Number of dead jobs kept."),
    ("keep_dead_for", "Dead kept for", "For example 30d; it only shortens retention."),
)
_NUMBERS = {"max_running", "burst", "max_size", "keep_finished", "keep_dead"}


async def show_one(view: View) -> dict[str, Any]:
    queue = await _queue(view)
    chosen = range_asked(view)
    statistics = view.inspector.statistics
    workers = await view.card("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    return {
        "title": queue.name,
        "queue": queue,
        "row": queue_rows(view, [queue])[0],
        "fields": [_field(queue, *field) for field in _FIELDS],
        "on_full": [rule.value for rule in OnFull],
        "ranges": RANGES,
        "chosen": chosen,
        "charts": await card(activity_charts(view, chosen, queue=queue.name)),
        "tasks": await view.card(
            ("tasks", queue.name, chosen.name),
            lambda: statistics.tasks(queue=queue.name, span=chosen.length),
            fresh=FRESH_STATISTICS,
        ),
        "workers": workers,
        "serving": [w for w in workers.value or [] if queue.name in w.queues],
    }


async def _queue(view: View) -> QueueView:
    name = view.queue
    found = await view.find_queue(name)
    if found is None:
        raise NotFoundError(f"There is no queue {name}. A queue appears with its first job.")
    return found


def _field(queue: QueueView, name: str, label: str, says: str) -> dict[str, Any]:
    value = limit_values(queue.limits)[name]
    in_code = queue.by_code.get(name)
    return {
        "name": name,
        "label": label,
        "says": says,
        "value": _shown(name, value),
        "set_by": queue.set_by.get(name, "default"),
        "in_code": None if in_code is None else _shown(name, in_code),
        "number": name in _NUMBERS,
    }


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    return format_ms(value).replace(" ", "") if name.endswith("_for") else str(value)


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────

_STARTS = {"pause": ("paused", "Running jobs continue."), "resume": ("resumed", "")}
_INTAKE = {"close": ("closed", "New jobs are refused."), "open": ("opened", "")}
_OPPOSITES = {"pause": "resume", "resume": "pause", "close": "open", "open": "close"}


async def switch_starts(view: View) -> Response:
    """Pause or resume a queue."""
    return await _switch(view, "switch", _STARTS)


async def switch_intake(view: View) -> Response:
    """Close or open a queue."""
    return await _switch(view, "intake", _INTAKE)


async def _switch(view: View, kind: str, acts: dict[str, tuple[str, str]]) -> Response:
    act, queue = view.part("act"), await _queue(view)
    if act not in acts:
        raise NotFoundError(f"There is no act {act:.20} on a queue.")
    said, more = acts[act]
    await getattr(view.inspector, act)(queue.name)
    await view.audit(f"queue.{act}", queue.name)
    path = f"/queues/{segment(queue.name)}"
    undo = f"{path}/{kind}/{_OPPOSITES[act]}"
    return view.done(f"{queue.name} is {said}. {more}".strip(), path, undo=undo)


async def set_limits(view: View) -> Response:
    """Set the limits that the form has changed."""
    queue = await _queue(view)
    path = f"/queues/{segment(queue.name)}"
    given = _changes(view)
    if not given:
        return view.done("Nothing was changed.", path)
    await view.inspector.set_limits(queue.name, LimitChange.of(**given))
    shown = {name: "none" if value is None else str(value) for name, value in given.items()}
    await view.audit("queue.set", queue.name, shown)
    named = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    return view.done(f"Set for {queue.name}: {named}.", path)


async def reset(view: View) -> Response:
    """Forget the operator's limits: those of the app's code are in effect again."""
    queue, name = await _queue(view), view.form.get("limit")
    names = [name] if name in LIMIT_NAMES else list(LIMIT_NAMES)
    await view.inspector.reset_limits(queue.name, names)
    await view.audit("queue.reset", queue.name, {"limits": ", ".join(names)})
    return view.done(f"{queue.name} has the limits of the code again.", f"/queues/{segment(queue.name)}")


async def throttle(view: View) -> Response:
    """Start no jobs for a while, or end that."""
    queue, time = await _queue(view), view.form.get("time") or None
    await view.inspector.set_limits(queue.name, LimitChange.of(throttle=time))
    await view.audit("queue.set", queue.name, {"throttle": str(time or "none")})
    says = f"{queue.name} starts no jobs for {time}." if time else f"{queue.name} starts jobs again."
    return view.done(says, f"/queues/{segment(queue.name)}")


def _changes(view: View) -> dict[str, Any]:
    """The limits that differ from those that the form was made with."""
    found: dict[str, Any] = {}
    for name in (*(name for name, _, _ in _FIELDS), "on_full"):
        text = view.form.get(name)
        if name in view.form and text != view.form.get(f"was_{name}"):
            found[name] = _value(name, text)
    if found.get("burst", 0) is None:
        del found["burst"]
    if "burst" in found and found.get("rate") is None:
        rate = view.form.get("rate")
        if not rate:
            raise ConfigError("A burst needs a rate: give both, for example 100/min and 10.")
        found["rate"] = rate
    return found


def _value(name: str, text: str) -> Any:
    if text == "" or text.lower() == "none":
        return None
    if name in _NUMBERS:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{name.replace('_', ' ')}: {text!r:.40} is not a whole number") from None
    return text


QUEUE = DashboardPage(name="queue", path="/queues/{queue}", title="Queue", show=show_one)
ACTS = (
    DashboardAct(path="/queues/{queue}/limits", do=set_limits, act="set_limits"),
    DashboardAct(path="/queues/{queue}/reset", do=reset, act="reset_limits"),
    DashboardAct(path="/queues/{queue}/throttle", do=throttle, act="set_limits"),
    DashboardAct(path="/queues/{queue}/switch/{act}", do=switch_starts, act="pause"),
    DashboardAct(path="/queues/{queue}/intake/{act}", do=switch_intake, act="close"),
)
