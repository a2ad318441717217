"""The facts of flows: of their calls, their durable steps, and signals."""

from __future__ import annotations

from penstock.verify.ledger.fact_base import Fact, JobFact

__all__ = [
    "FlowAnswered",
    "FlowChanged",
    "FlowExpected",
    "FlowPut",
    "SignalSent",
    "StepRan",
    "StepRecorded",
]


class FlowExpected(Fact, frozen=True):
    """How a flow that is about to be enqueued may end, computed without a store.

    - `ends`: the states in which it may end. `result`: its result as JSON, if it completes; empty: unknown.
    """

    id: str
    shape: str
    ends: tuple[str, ...]
    result: str = ""


class FlowPut(Fact, frozen=True):
    """A call that stores nodes of a flow; with `start` the last one. Each job has an `Offered` of its own."""

    queue: str
    id: str
    nodes: int
    start: bool = True


class FlowAnswered(Fact, frozen=True):
    """The answer to `FlowPut`: the state of the flow, `refused`, or `unknown`."""

    queue: str
    id: str
    answer: str


class FlowChanged(Fact, frozen=True):
    """A cancel or retry of a flow: before the call without `answer`, after it with the state, empty if there
    is no such flow, or `unknown`."""

    queue: str
    id: str
    change: str
    answer: str | None = None


class StepRan(JobFact, frozen=True):
    """The function of a durable step, or of an undo, begins; with `over` it has returned."""

    token: str
    step: str
    over: bool = False


class StepRecorded(JobFact, frozen=True):
    """The answer to a call that stores a step, or waits for a signal: a `RecordStatus`, or `unknown`.

    `sent`: when the call was sent (mono). `value`: what the job remembers by now, shortened. `signal`: name
    and key of the signal that the step has received.
    """

    token: str
    step: str
    status: str
    sent: int = 0
    value: str | None = None
    signal: tuple[str, str] | None = None


class SignalSent(Fact, frozen=True):
    """A signal: before the call without `answer`, after it with a `SignalStatus`, or `unknown`."""

    name: str
    key: str
    data: str
    to: str = ""  # the id of the only job that may receive it
    answer: str = ""
