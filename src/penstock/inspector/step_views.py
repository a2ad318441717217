"""The durable steps of a job as operators see them: results, waits, gathered jobs, undo runs.

The names of stored steps are those of `workflows/step_plans.py`; names of users have no "!".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.core.formats import instant, iso, json_or_base64, shown_text
from penstock.core.job import Job, Ref, State
from penstock.inspector.flow_views import FlowView, flow_view
from penstock.inspector.job_views import JobRow, job_row
from penstock.stores.contract import Store, StoredStep
from penstock.stores.job_log import is_log

__all__ = [
    "LARGEST_SHOWN",
    "MOST_STEPS_SHOWN",
    "DurableStepView",
    "StepsView",
    "WaitView",
    "open_gathers",
    "read_steps",
    "read_waits",
]

#: The latest steps that are shown, the largest value (bytes), and the jobs of a gather that are looked up.
MOST_STEPS_SHOWN, LARGEST_SHOWN, _LOOKED_UP = 200, 16 * 1024, 3
#: The most bytes of values that are read of one job: those of the latest steps first.
_MOST_READ = 256 * 1024
#: A job is suspended for a timer a moment longer than the timer runs (ms).
_TIMER_GRACE = 10_000
_TRY = re.compile(r"(.+)!(\d+)")
_KINDS = {"undo": "undo", "sleep": "timer", "wait": "signal", "gather": "gather"}
_members_of = msgspec.json.Decoder(list[tuple[str, str, bool, int]]).decode


class DurableStepView(msgspec.Struct, frozen=True, kw_only=True):
    """What a job remembers.

    - `kind`: step, signal, timer, gather or undo. `name`: of the step, or of the signal.
    - `value`, `value_base64`: its result, or the data of the signal; both None while it waits, if there is
      none, if it has more than 16 KiB, and if later steps have 256 KiB together. `size`: its bytes.
    - `waits`: it has not ended. `key`: of the signal. `due_at`: when the wait ends in any case.
    - `tries`: how often the step's function has failed before. `undone`: its undo function has run.
    - `jobs`: of a gather. `flow`: the flow that counts their ends, while it exists.
    """

    kind: str
    name: str
    at: str
    size: int = 0
    value: msgspec.Raw | None = None
    value_base64: str | None = None
    waits: bool = False
    key: str = ""
    due_at: str | None = None
    tries: int = 0
    undone: bool = False
    jobs: int = 0
    flow: FlowView | None = None


class WaitView(msgspec.Struct, frozen=True):
    """What a suspended job waits for: a signal (`signal`, `key`) until `due_at`, a timer, or other jobs."""

    queue: str
    id: str
    kind: str
    signal: str
    key: str
    since: str
    due_at: str | None


class StepsView(msgspec.Struct, frozen=True):
    """The latest steps of a job, oldest first.

    `total`: of all steps. `failed`: why they are being, or were, undone. `version`: of the code that began.
    """

    job: JobRow
    steps: list[DurableStepView]
    total: int
    failed: str | None
    version: str | None


async def read_steps(store: Store, ref: Ref) -> StepsView | None:
    """Read what a job remembers; None if there is no job."""
    (job,) = await store.get([ref])
    if job is None:
        return None
    reading = await _read(store, job)
    children = await _children(store, reading.gathers())
    failed = reading.text("failed!")
    return StepsView(
        job=job_row(job),
        steps=reading.views(children),
        total=len(reading.names),
        failed=None if failed is None else failed.partition("\x00")[0],  # without the token of the lease
        version=reading.text("version!"),
    )


async def read_waits(store: Store, refs: Sequence[Ref]) -> list[WaitView]:
    """What these suspended jobs wait for."""
    waits = []
    for job in await store.get(refs) if refs else []:
        if job is not None and job.state is State.SUSPENDED:
            waits += (await _read(store, job)).waits()
    return waits


async def open_gathers(store: Store, job: Job) -> list[list[Ref]]:
    """The jobs of each gather of this job that has not ended."""
    return list((await _read(store, job)).gathers().values())


async def _read(store: Store, job: Job) -> _Reading:
    """The names of all steps of a job, and the values of the latest."""
    reading = _Reading(job, await store.steps(job.ref, largest=0))
    if names := reading.values_shown():
        reading.add(await store.steps(job.ref, names=names, largest=_MOST_READ))
    return reading


class _Reading:
    """The steps of one job by name."""

    def __init__(self, job: Job, steps: Sequence[StoredStep]) -> None:
        self._job = job
        self._steps = {step.name: step for step in steps if not is_log(step)}
        tries = (_TRY.fullmatch(name) for name in self._steps)
        self._tries = Counter(found[1] for found in tries if found is not None)
        #: The names of the steps that are shown, in the order in which they were stored.
        self.names = [name for name in self._steps if _kind(name) is not None]

    def values_shown(self) -> list[str]:
        """The names of the steps whose values are read."""
        shown = self.names[: -MOST_STEPS_SHOWN - 1 : -1]
        kinds = {name: _kind(name) for name in self.names}
        timers = [name for name in reversed(self.names) if kinds[name] == "timer"]
        facts = ["failed!", "version!", *timers[:MOST_STEPS_SHOWN]]
        facts += [f"{name}!1" for name in self.gathers()]
        facts += [f"{name}!1" for name in shown if kinds[name] == "gather"]
        facts += [f"{name}!until" for name in shown if kinds[name] == "signal"]
        shown = [name for name in shown if kinds[name] not in ("timer", "undo")]
        found: list[str] = []
        left = _MOST_READ
        for name, largest in [(name, left) for name in facts] + [(name, LARGEST_SHOWN) for name in shown]:
            size = self._steps[name].size if name in self._steps else 0
            if 0 < size <= min(left, largest):
                found.append(name)
                left -= size
        return found

    def add(self, steps: Sequence[StoredStep]) -> None:
        """Take the values of these steps."""
        self._steps.update((step.name, step) for step in steps if step.name in self._steps)

    def views(self, children: dict[str, FlowView]) -> list[DurableStepView]:
        """The latest steps."""
        shown = [self._view(self._steps[name]) for name in self.names[-MOST_STEPS_SHOWN:]]
        return shown + [self._gather_step(name, children.get(name)) for name in self.gathers()]

    def waits(self) -> list[WaitView]:
        """What the job waits for; the time at which it continues in any case, if nothing else is known."""
        job = self._job
        open_ = [name for name in self.names if self._steps[name].value is None or _kind(name) == "timer"]
        found = [self._view(self._steps[name]) for name in open_[-MOST_STEPS_SHOWN:]]
        found += [self._gather_step(name, None) for name in self.gathers()]
        found = [view for view in found if view.waits]
        if not found:
            since = instant(job.enqueued_at if job.fetched_at is None else job.fetched_at)
            found = [DurableStepView(kind="timer", name="", at=since, due_at=iso(job.run_at))]
        return [
            WaitView(job.queue, job.id, view.kind, view.name, view.key, view.at, view.due_at)
            for view in found
        ]

    def text(self, name: str) -> str | None:
        """The value of a step that is text."""
        step = self._steps.get(name)
        return None if step is None else shown_text((step.value or b"").decode(errors="replace"))

    def gathers(self) -> dict[str, list[Ref]]:
        """The first jobs of each gather that has not ended, by its name."""
        found = {}
        for name, step in self._steps.items():
            key = name.removesuffix("!1")
            if name.startswith("gather!") and name != key and key not in self._steps:
                found[key] = [Ref(queue, id) for queue, id, _, _ in _members(step)]
        return found

    def _gather_step(self, name: str, flow: FlowView | None) -> DurableStepView:
        """A gather whose jobs have not all ended."""
        step = self._steps[f"{name}!1"]
        return DurableStepView(
            kind="gather", name=name, at=instant(step.at), waits=True, jobs=len(_members(step)), flow=flow
        )

    def _view(self, step: StoredStep) -> DurableStepView:
        name, kind = step.name, _kind(step.name)
        if kind == "undo":
            return DurableStepView(kind=kind, name=shown_text(name.partition("!")[2]), at=instant(step.at))
        if kind == "timer":
            return self._timer(step)
        if kind == "signal":
            return self._signal(step)
        if kind == "gather":
            return self._made(kind, step, name, jobs=len(_members(self._steps.get(f"{name}!1"))))
        return self._made("step", step, name, tries=self._tries[name], undone=f"undo!{name}" in self._steps)

    def _timer(self, step: StoredStep) -> DurableStepView:
        due = _number(step)
        suspended = self._job.state is State.SUSPENDED
        waits = suspended and due is not None and due + _TIMER_GRACE >= self._job.run_at
        return DurableStepView(kind="timer", name="", at=instant(step.at), due_at=iso(due), waits=waits)

    def _signal(self, step: StoredStep) -> DurableStepView:
        name = step.name.partition("!")[2].partition("#")[0]
        due = iso(_number(self._steps.get(f"{step.name}!until")))
        signal, key = step.signal or (name, "")
        if step.value is None:
            return DurableStepView(
                kind="signal",
                name=signal,
                key=key,
                at=instant(step.at),
                due_at=due,
                waits=not self._job.ended,
            )
        if step.signal is None:  # the timeout came first
            return DurableStepView(kind="signal", name=name, at=instant(step.at), due_at=due)
        return self._made("signal", step, signal, key=key)

    def _made(
        self,
        kind: str,
        step: StoredStep,
        name: str,
        *,
        tries: int = 0,
        undone: bool = False,
        key: str = "",
        jobs: int = 0,
    ) -> DurableStepView:
        size = step.size
        value, base64 = (None, None) if step.left_out or size > LARGEST_SHOWN else json_or_base64(step.value)
        return DurableStepView(
            kind=kind,
            name=shown_text(name),
            at=instant(step.at),
            size=size,
            value=value,
            value_base64=base64,
            tries=tries,
            undone=undone,
            key=key,
            jobs=jobs,
        )


def _kind(name: str) -> str | None:
    """What a stored step is, by its name; None for versions, failed tries and ends of waits."""
    first, mark, _ = name.partition("!")
    if not mark:
        return "step"
    if _TRY.fullmatch(name) or name.endswith("!until"):
        return None
    return _KINDS.get(first)


def _members(step: StoredStep | None) -> list[tuple[str, str, bool, int]]:
    """The jobs of a gather; none if the step cannot be read."""
    try:
        return _members_of((step and step.value) or b"[]")
    except msgspec.MsgspecError:
        return []


def _number(step: StoredStep | None) -> int | None:
    """The instant that a step holds."""
    text = b"" if step is None else step.value or b""
    return int(text) if text.isdigit() and len(text) < 16 else None


async def _children(store: Store, gathers: dict[str, list[Ref]]) -> dict[str, FlowView]:
    """The flows that count the ends of the jobs of gathers, by the names of these."""
    found: dict[str, FlowView] = {}
    for name, refs in list(gathers.items())[:_LOOKED_UP]:
        jobs = await store.get(refs[:_LOOKED_UP]) if refs else []
        homes = [job.spec.flow for job in jobs if job is not None and job.spec.flow is not None]
        for info in await store.get_flows([Ref(home.queue, home.id) for home in homes[:1]]):
            if info is not None:
                found[name] = flow_view(info)
    return found
