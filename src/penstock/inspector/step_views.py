"""The durable steps of a job as operators see them: results, waits, gathered jobs, undo runs.

The names of stored steps are those of `core/step_names.py`, or of an older release.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.core.flow import FlowInfo
from penstock.core.formats import json_or_base64, shown_text
from penstock.core.job import Job, Ref, State
from penstock.core.step_names import VERSION, parsed, split_value
from penstock.inspector.job_views import row_of
from penstock.stores.contract import Store, StoredStep
from penstock.stores.job_log import is_log

#: The latest steps that are shown, the largest value (bytes), and the jobs of a gather that are looked up.
MOST_STEPS_SHOWN, LARGEST_SHOWN, _LOOKED_UP = 200, 16 * 1024, 3
#: The most bytes of values that are read of one job: those of the latest steps first.
_MOST_READ = 256 * 1024
#: A job is suspended for a timer a moment longer than the timer runs (ms).
_TIMER_GRACE = 10_000
_TRY = re.compile(r"(.+)!(\d+)")
#: Kinds of stored names, as they are shown.
_KINDS = {"undo": "undo", "sleep": "timer", "wait": "signal", "gather": "gather"}
_members_of = msgspec.json.Decoder(list[tuple[str, str, bool, int]]).decode


class SetAsideView(msgspec.Struct, frozen=True):
    """A signal that did not fit its wait: its data, why, and when it had come.

    `workflows/step_plans.py` stores it.
    """

    data: msgspec.Raw
    why: str
    at: int


class DurableStepView(msgspec.Struct, frozen=True, kw_only=True):
    """What a job remembers.

    - `kind`: step, signal, timer, gather, add, loop, first or undo. `name`: of the step, or of the signal.
    - `stored`: the name under which it is stored, for operators who drop or replace it.
    - `scope`: the branches and items of loops around it. `use`: the number of its use.
    - `value`, `value_base64`: its result, or the data of the signal; both None while it waits, if there is
      none, if it has more than 16 KiB, and if later steps have 256 KiB together. `size`: its bytes.
    - `waits`: it has not ended. `key`: its key, or that of the signal. `due_at`: when the wait ends at last.
    - `of`: the JSON schema of the data that the wait takes. `aside`: signals that did not fit it.
    - `tries`: how often the step's function has failed before. `undone`: its undo function has run.
    - `failed`: the error of a step that has failed, which the code has caught. `cut`: a timeout or
      cancellation of the code has cut it off.
    - `jobs`: of a gather. `flow`: the flow that counts their ends, while it exists.
    """

    kind: str
    name: str
    at: int
    stored: str = ""
    scope: str = ""
    use: int = 1
    size: int = 0
    value: msgspec.Raw | None = None
    value_base64: str | None = None
    waits: bool = False
    key: str = ""
    due_at: int | None = None
    of: msgspec.Raw | None = None
    aside: tuple[SetAsideView, ...] = ()
    tries: int = 0
    undone: bool = False
    failed: str | None = None
    cut: bool = False
    jobs: int = 0
    flow: FlowInfo | None = None


class WaitView(msgspec.Struct, frozen=True):
    """What a suspended job waits for: a signal (`signal`, `key`) until `due_at`, a timer, or other jobs.

    `of`: the JSON schema of the signal's data, if it has one.
    """

    queue: str
    id: str
    kind: str
    signal: str
    key: str
    since: int
    due_at: int | None
    of: msgspec.Raw | None = None


class StepsView(msgspec.Struct, frozen=True):
    """The latest steps of a job, oldest first.

    `total`: of all steps. `failed`: why they are being, or were, undone. `version`: of the code that began.
    """

    job: Job
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
        job=row_of(job),
        steps=reading.views(children),
        total=len(reading.names),
        failed=None if failed is None else failed.partition("\x00")[0],  # without the token of the lease
        version=reading.text(VERSION) or reading.text("version!"),
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


class _Label(NamedTuple):
    """What a stored name says. `of`: the stored name of the operation; `helper`: of a helper record."""

    kind: str
    name: str
    of: str
    key: str = ""
    scope: str = ""
    use: int = 1
    helper: str = ""


class _Reading:
    """The steps of one job by name."""

    def __init__(self, job: Job, steps: Sequence[StoredStep]) -> None:
        self._job = job
        self._steps = {step.name: step for step in steps if not is_log(step)}
        self._labels = {name: label for name in self._steps if (label := _label_of(name)) is not None}
        self._helpers: dict[str, set[str]] = {}
        for label in self._labels.values():
            if label.helper:
                self._helpers.setdefault(label.of, set()).add(label.helper)
        #: The names of the operations that are shown, in the order in which they were stored.
        self.names = list(dict.fromkeys(name for name in map(self._shown_by, self._labels) if name))

    def _shown_by(self, name: str) -> str | None:
        """The operation that shows this record; None: no line of its own."""
        label = self._labels[name]
        if label.helper in ("failed", "cut"):  # without a result
            return label.of
        return None if label.helper else name

    def values_shown(self) -> list[str]:
        """The names of the steps whose values are read."""
        shown = self.names[: -MOST_STEPS_SHOWN - 1 : -1]
        timers = [name for name in reversed(self.names) if self._labels_of(name).kind == "timer"]
        facts = ["failed!", "version!", VERSION, *timers[:MOST_STEPS_SHOWN]]
        facts += [f"{name}!1" for name in self.gathers()]
        for name in shown:
            helpers = sorted(self._helpers.get(name, ()))
            ended = name in self._steps and self._steps[name].value is not None
            helpers = [helper for helper in helpers if helper != "of" or not ended]
            facts += [f"{name}!{helper}" for helper in helpers if helper == "1" or not helper.isdigit()]
        shown = [name for name in shown if self._labels_of(name).kind not in ("timer", "undo")]
        found: list[str] = []
        left = _MOST_READ
        for name, largest in [(name, left) for name in facts] + [(name, LARGEST_SHOWN) for name in shown]:
            size = self._steps[name].size if name in self._steps else 0
            if 0 < size <= min(left, largest):
                found.append(name)
                left -= size
        return found

    def _labels_of(self, name: str) -> _Label:
        found = self._labels.get(name) or _label_of(name)
        assert found is not None
        return found

    def add(self, steps: Sequence[StoredStep]) -> None:
        """Take the values of these steps."""
        self._steps.update((step.name, step) for step in steps if step.name in self._steps)

    def views(self, children: dict[str, FlowInfo]) -> list[DurableStepView]:
        """The latest steps."""
        open_ = self.gathers()
        shown = [self._view(name) for name in self.names[-MOST_STEPS_SHOWN:] if name not in open_]
        return shown + [self._gather_step(name, children.get(name)) for name in open_]

    def waits(self) -> list[WaitView]:
        """What the job waits for; the time at which it continues in any case, if nothing else is known."""
        job = self._job
        open_ = [
            name
            for name in self.names
            if name in self._steps and (self._steps[name].value is None or self._labels[name].kind == "timer")
        ]
        found = [self._view(name) for name in open_[-MOST_STEPS_SHOWN:]]
        found += [self._gather_step(name, None) for name in self.gathers()]
        found = [view for view in found if view.waits]
        if not found:
            since = job.enqueued_at if job.fetched_at is None else job.fetched_at
            found = [DurableStepView(kind="timer", name="", at=since, due_at=job.run_at)]
        return [
            WaitView(job.queue, job.id, view.kind, view.name, view.key, view.at, view.due_at, view.of)
            for view in found
        ]

    def text(self, name: str) -> str | None:
        """The value of a step that is text."""
        step = self._steps.get(name)
        return None if step is None else shown_text((step.value or b"").decode(errors="replace"))

    def gathers(self) -> dict[str, list[Ref]]:
        """The first jobs of each gather that has not ended, by its name."""
        found = {}
        for name, label in self._labels.items():
            is_members = label.kind == "gather" and label.helper == "1" and label.of not in self._steps
            if is_members and not self._helpers[label.of] & {"failed", "cut"}:
                members = _members(self._steps[name])
                found[label.of] = [Ref(queue, id) for queue, id, _, _ in members]
        return found

    def _gather_step(self, name: str, flow: FlowInfo | None) -> DurableStepView:
        """A gather whose jobs have not all ended."""
        step = self._steps[f"{name}!1"]
        made = self._made(name, step.at, None)
        return replace(made, waits=True, jobs=len(_members(step)), flow=flow)

    def _view(self, name: str) -> DurableStepView:
        label, step = self._labels_of(name), self._steps.get(name)
        if step is None:  # it has failed, or was cut off
            record = self._steps.get(f"{name}!failed") or self._steps[f"{name}!cut"]
            return self._made(name, record.at, None)
        made = self._made(name, step.at, step)
        match label.kind:
            case "undo" | "loop":
                return replace(made, value=None, size=0)
            case "timer":
                return self._timer(made, step)
            case "signal":
                return self._signal(made, step)
            case "gather":
                return replace(made, jobs=len(_members(self._steps.get(f"{name}!1"))))
        return made

    def _timer(self, made: DurableStepView, step: StoredStep) -> DurableStepView:
        due = _number(_value_of(step))
        suspended = self._job.state is State.SUSPENDED
        waits = suspended and due is not None and due + _TIMER_GRACE >= self._job.run_at
        return replace(made, name="", size=0, value=None, due_at=due, waits=waits)

    def _signal(self, made: DurableStepView, step: StoredStep) -> DurableStepView:
        until = self._steps.get(f"{step.name}!until")
        made = replace(made, due_at=_number(None if until is None else until.value))
        if step.signal is not None:
            made = replace(made, name=shown_text(step.signal[0]), key=step.signal[1])
        if step.value is None:
            return replace(made, waits=not self._job.ended)
        if step.signal is None:  # the timeout came first
            return replace(made, size=0, value=None, value_base64=None)
        return made

    def _made(self, name: str, at: int, step: StoredStep | None) -> DurableStepView:
        label, helpers = self._labels_of(name), self._helpers.get(name, set())
        text = _value_of(step)
        size = 0 if step is None else len(text or b"") + step.left_out
        left_out = step is not None and (step.left_out > 0 or size > LARGEST_SHOWN)
        value, base64 = (None, None) if left_out else json_or_base64(text)
        return DurableStepView(
            kind=label.kind,
            name=shown_text(label.name),
            at=at,
            stored=name,
            scope=shown_text(label.scope),
            use=label.use,
            size=size,
            value=value,
            value_base64=base64,
            key=label.key,
            of=_raw(self._steps.get(f"{name}!of")),
            aside=self._aside(name),
            tries=sum(helper.isdigit() for helper in helpers) if label.kind == "step" else 0,
            undone=not self._steps.keys().isdisjoint((f"undo!{name}", f"{name}!undone")),
            failed=_failure(self._steps.get(f"{name}!failed")),
            cut="cut" in helpers,
        )

    def _aside(self, name: str) -> tuple[SetAsideView, ...]:
        found = []
        for helper in sorted(self._helpers.get(name, ())):
            step = self._steps[f"{name}!{helper}"]
            one = _set_aside(step) if helper.startswith("aside") else None
            if one is not None:
                found.append(replace(one, why=shown_text(one.why)))
        return tuple(found)


class _StoredFailure(msgspec.Struct):
    """The part of a stored failure that is shown (`workflows/failures.py`)."""

    name: str
    text: str


def _label_of(name: str) -> _Label | None:
    """What a stored name says; None for versions and marks."""
    if name.startswith("!"):
        found = parsed(name)
        if found is None:
            return None
        if found.suffix == "undone":
            return _Label("undo", found.shown, name)
        of = name.removesuffix(f"!{found.suffix}") if found.suffix else name
        scope, kind = "/".join(found.scope), _KINDS.get(found.kind, found.kind)
        return _Label(kind, found.name, of, found.key or "", scope, found.use, found.suffix)
    first, mark, rest = name.partition("!")
    if not mark:
        return _Label("step", name, name)
    tried = _TRY.fullmatch(name)
    if tried is not None:
        kind = "gather" if name.startswith("gather!") else "step"
        return _Label(kind, tried[1], tried[1], helper=tried[2])
    if name.endswith("!until"):
        return _Label("signal", rest, name.removesuffix("!until"), helper="until")
    if first not in _KINDS or name == "undo!":
        return None
    shown = rest.partition("#")[0] if first == "wait" else name if first == "gather" else rest
    return _Label(_KINDS[first], shown, name)


def operation_of(stored: str) -> tuple[str, str] | None:
    """The kind and the stored name of the operation of a record; None for versions and marks.

    That an undo function has run belongs to its step.
    """
    label = _label_of(stored)
    if label is None:
        return None
    found = parsed(stored)
    if found is not None and found.suffix == "undone":
        return _KINDS.get(found.kind, found.kind), stored.removesuffix("!undone")
    return label.kind, label.of


def short_name(stored: str) -> str:
    """The stored name for a command line: without the "!" in front, which shells take for their own."""
    return stored.removeprefix("!")


def step_text(stored: str) -> str:
    """The name of a stored step as its author knows it; "" for what only the flow remembers."""
    label = _label_of(stored)
    if label is None or label.helper:
        return ""
    found = parsed(stored)
    shown = shown_text(label.name if found is None or label.kind == "undo" else found.shown)
    texts = {"signal": f"signal {shown}", "timer": "timer", "gather": "jobs", "undo": f"undo of {shown}"}
    texts |= {"loop": f"loop {shown}", "add": "members added", "first": "first of several waits"}
    return texts.get(label.kind, shown)


def _value_of(step: StoredStep | None) -> bytes | None:
    """The value of a stored operation, without the line before it."""
    if step is None or step.value is None:
        return None
    found = parsed(step.name)
    return step.value if found is None or found.kind in ("wait", "loop") else split_value(step.value)[1]


def _raw(step: StoredStep | None) -> msgspec.Raw | None:
    return None if step is None else json_or_base64(step.value or None)[0]


def _failure(step: StoredStep | None) -> str | None:
    """The text of a stored failure; None: there is none."""
    if step is None:
        return None
    try:
        found = msgspec.json.decode(split_value(step.value or b"")[1], type=_StoredFailure)
    except msgspec.MsgspecError:
        return "it has failed"
    return shown_text(f"{found.name}: {found.text}")


def _set_aside(step: StoredStep) -> SetAsideView | None:
    """A signal that was set aside; None if it was not read, or cannot be."""
    try:
        return msgspec.json.decode(step.value or b"", type=SetAsideView)
    except msgspec.MsgspecError:
        return None


def _members(step: StoredStep | None) -> list[tuple[str, str, bool, int]]:
    """The jobs of a gather; none if the step cannot be read."""
    try:
        return _members_of(_value_of(step) or b"[]")
    except msgspec.MsgspecError:
        return []


def _number(text: bytes | None) -> int | None:
    """The instant that a step holds."""
    text = text or b""
    return int(text) if text.isdigit() and len(text) < 16 else None


async def _children(store: Store, gathers: dict[str, list[Ref]]) -> dict[str, FlowInfo]:
    """The flows that count the ends of the jobs of gathers, by the names of these."""
    found: dict[str, FlowInfo] = {}
    for name, refs in list(gathers.items())[:_LOOKED_UP]:
        jobs = await store.get(refs[:_LOOKED_UP]) if refs else []
        homes = [job.spec.flow for job in jobs if job is not None and job.spec.flow is not None]
        for info in await store.get_flows([Ref(home.queue, home.id) for home in homes[:1]]):
            if info is not None:
                found[name] = info
    return found
