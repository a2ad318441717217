"""Drop or replace a stored step of a job that no worker has, for a flow that its code can no longer read."""

from __future__ import annotations

import msgspec

from penstock.codec.schema import misfit
from penstock.core.errors import ArgumentError, did_you_mean
from penstock.core.formats import shown_text
from penstock.core.job import Job, Ref, State
from penstock.core.step_names import parsed, split_value, with_head
from penstock.encryption import why_not_here
from penstock.inspector.job_acts import Change
from penstock.inspector.step_views import operation_of, short_name
from penstock.stores.contract import EditStatus, StepEdit, Store, StoredStep
from penstock.stores.job_log import is_log

#: Kinds of operations whose value may be replaced: that of a timer is an instant, and others have none.
_WITH_VALUES = ("step", "signal", "gather", "first")
#: Helper records that an operation with a value has no more.
_OUTCOMES = ("failed", "cut")


async def drop_step(store: Store, ref: Ref, name: str) -> Change:
    """Forget a step, with its failed tries and what else is stored of it: the next run asks for it again.

    `name`: the stored name, with or without the "!" in front.
    """
    found = await _Found.read(store, ref, name)
    if isinstance(found, Change):
        return found
    return await found.apply([StepEdit(one, None) for one in found.records], "dropped")


async def set_step(store: Store, ref: Ref, name: str, value: bytes) -> Change:
    """Replace the value of a step by JSON: a failed one then has a value, and a wait ends with it.

    Raises ArgumentError if the value is not JSON, or not what a wait takes.
    """
    try:
        msgspec.json.decode(value)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the value of {shown_text(name)} is not JSON: {error}") from None
    found = await _Found.read(store, ref, name)
    if isinstance(found, Change):
        return found
    if found.kind not in _WITH_VALUES:
        return found.refused(f"a {found.kind} has no value to replace: drop it")
    if found.kind == "signal" and found.signal is None:
        return found.refused("the wait has timed out: drop it, and the next run waits again")
    if (why := await found.unreadable()) is not None:
        return found.refused(f"the step cannot be read here: {why}")
    edits = [StepEdit(found.name, await found.behind_head(value))]
    edits += [StepEdit(one, None) for one in found.records if one.removeprefix(f"{found.name}!") in _OUTCOMES]
    return await found.apply(edits, "replaced")


class _Found:
    """A stored operation of a job, and its records."""

    def __init__(self, store: Store, job: Job, name: str, kind: str, records: list[StoredStep]) -> None:
        self._store = store
        self._job = job
        self.name = name
        self.kind = kind
        self.records = [step.name for step in records]
        #: The signal that it waits for, or has received.
        self.signal = next((step.signal for step in records if step.name == name), None)

    @classmethod
    async def read(cls, store: Store, ref: Ref, name: str) -> _Found | Change:
        """The operation of this name; a refusal if there is none."""
        (job,) = await store.get([ref])
        if job is None:
            return Change(ref.queue, ref.id, "missing", "no such job")
        steps = [step for step in await store.steps(ref, largest=0) if not is_log(step)]
        operations: dict[str, tuple[str, list[StoredStep]]] = {}
        for step in steps:
            found = operation_of(step.name)
            if found is not None:
                kind, of = found
                operations.setdefault(of, (kind, []))[1].append(step)
        chosen = name if name in operations else f"!{name}"
        if chosen not in operations:
            given = short_name(name)
            near = did_you_mean(given, map(short_name, operations))
            says = f"it has no step {shown_text(given)!r}{near}: `penstock jobs steps {ref.id}` lists them"
            return Change(ref.queue, ref.id, "missing", says)
        kind, records = operations[chosen]
        return cls(store, job, chosen, kind, records)

    async def unreadable(self) -> str | None:
        """Why the stored value cannot be read here, such as a missing key of encryption; None if it can."""
        for step in await self._steps(*self.records):
            if step.value and (why := why_not_here(step.value)) is not None:
                return why
        return None

    async def behind_head(self, value: bytes) -> bytes:
        """The new value behind the line of the stored one. Raises ArgumentError if a wait takes no such."""
        place = parsed(self.name)
        if place is None:
            return value
        if place.kind == "wait":
            for step in await self._steps(f"{self.name}!of"):
                why = misfit(step.value, value) if step.value else None
                if why is not None:
                    raise ArgumentError(f"the value does not fit what {short_name(self.name)} takes: {why}")
            return value
        names = [self.name, *(f"{self.name}!{outcome}" for outcome in (*_OUTCOMES, "1"))]
        for step in await self._steps(*names):
            head, line, _ = (step.value or b"").partition(b"\n")
            if line:
                return with_head(split_value(head)[0], value)
        return with_head("", value)  # nothing says what was asked for

    async def _steps(self, *names: str) -> list[StoredStep]:
        by_name = {step.name: step for step in await self._store.steps(self._job.ref, names=names)}
        return [by_name[name] for name in names if name in by_name]

    async def apply(self, edits: list[StepEdit], done: str) -> Change:
        """Make the edits, and say what becomes of the job."""
        status = await self._store.edit_steps(self._job.ref, edits)
        ref, state = self._job.ref, self._job.state
        if status is EditStatus.MISSING:
            return Change(ref.queue, ref.id, "missing", "no such job")
        if status is EditStatus.RUNNING:
            return self.refused("it is running: try again when it waits or has ended")
        if status is EditStatus.FULL:
            return self.refused("it would remember too many steps, or too many bytes")
        then = "it runs again at once" if state is State.SUSPENDED else _then(ref, state)
        return Change(ref.queue, ref.id, "done", f"{done} {shown_text(short_name(self.name))}; {then}")

    def refused(self, why: str) -> Change:
        """The refusal of a change."""
        return Change(self._job.queue, self._job.id, "refused", f"not changed: {why}")


def _then(ref: Ref, state: State) -> str:
    if state in (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE):
        return f"it is {state.value}, and its next run uses it"
    return f"it is {state.value}: `penstock jobs retry {ref.queue}/{ref.id}` runs it again"
