"""The running attempt, as its task sees it: its facts, progress and cancellation."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.core.errors import AttemptCancelled, PenstockError
from penstock.core.job import Job, Progress
from penstock.core.running import running_attempt
from penstock.core.text import shown, storable, text_of
from penstock.stores.contract import Store
from penstock.stores.job_log import LINES_KEPT, LogLine, shortened

if TYPE_CHECKING:  # a supervisor loads this module, and no client
    import asyncio

    from penstock.client.options import Options

__all__ = ["Attempt", "AttemptOwner", "NoCurrentJob", "StepAccess", "current_job", "running"]

#: Largest float that is exact to the unit, in every language.
_MAX_EXACT = 2**53
_LONGEST_NOTE = 200
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class NoCurrentJob(PenstockError, LookupError):
    """`current_job()` was called outside a running task."""


class StepAccess(NamedTuple):
    """What durable steps of a task need: its store, options and kind, the worker's lease (ms) and loop."""

    store: Callable[[], Store]
    options: Options
    run_in: str
    lease: int
    loop: asyncio.AbstractEventLoop


class AttemptOwner(Protocol):
    """The worker's view of a running job, for durable steps."""

    @property
    def step_access(self) -> StepAccess | None: ...

    def store_now(self) -> int:
        """The store's clock (ms)."""
        ...


class Attempt:
    """One attempt of a job, as its function sees it through `current_job()`."""

    __slots__ = ("_cancelled", "_ends", "_logged", "_report", "flow", "job", "owner", "stopping")

    def __init__(
        self,
        job: Job,
        report: Callable[[Job, Progress | LogLine], None] | None = None,
        ends: float | None = None,
        owner: AttemptOwner | None = None,
    ) -> None:
        self.job = job
        self.owner = owner
        #: The durable steps of this attempt, once `current_flow()` was called.
        self.flow: Any = None
        #: Whether the worker drains: a long loop of a flow suspends itself and goes on elsewhere.
        self.stopping = False
        self._report = report
        self._ends = ends  # time.monotonic() at which this attempt times out
        self._cancelled = False
        self._logged = 0  # lines of the log

    @property
    def id(self) -> str:
        """The job's id: the same in every attempt, so it serves as an idempotency key."""
        return self.job.spec.id

    @property
    def task(self) -> str:
        return self.job.spec.task

    @property
    def queue(self) -> str:
        return self.job.spec.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        return self.job.spec.max_attempts

    @property
    def batch_key(self) -> str:
        """The batch key of the running batch; "" for any other job."""
        terms = self.job.spec.batch_terms
        return "" if terms is None else terms.key

    @property
    def members(self) -> tuple[str, ...]:
        """The ids of the jobs in the running batch, in the order of the list's elements."""
        return self.job.members

    @property
    def headers(self) -> Mapping[str, str]:
        return self.job.spec.headers or _NO_HEADERS

    @property
    def inherited_headers(self) -> Mapping[str, str] | None:
        """The headers of the jobs and flows that the task enqueues; None of a batch, whose members differ."""
        return None if self.job.members else self.job.spec.headers

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was asked to stop; check it regularly in long loops."""
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raise AttemptCancelled if this attempt was asked to stop."""
        if self._cancelled:
            raise AttemptCancelled("the job was cancelled")

    def ask_to_stop(self) -> None:
        """Set `cancelled`. For the worker."""
        self._cancelled = True

    def remaining(self) -> float | None:
        """Seconds until this attempt times out; None without a timeout or deadline."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def progress(self, done: float, of: float | None = None, note: str = "") -> None:
        """Report progress; `handle.job()` and the command line show it within about a quarter of a second.

        `done` and `of` are whole numbers or floats from -2**53 to 2**53. Of `note`, a text, the first 200
        characters are kept. Other values raise TypeError or ValueError.
        """
        reported = Progress(_number("done", done), None if of is None else _number("of", of), _note(note))
        if self._report is not None:
            self._report(self.job, reported)

    def log(self, text: object) -> None:
        """Add a line to the log that is kept with the job: `penstock jobs show` and `jobs log` print it.

        The line is stored with the next heartbeat, within about a quarter of a second. A job keeps its first
        200 lines of at most 4 KB, 64 KB in all; they are removed with the job.
        """
        self._logged += 1
        if self._report is not None and self._logged <= LINES_KEPT + 1:
            line = text if type(text) is str else text_of(text, "(unreadable)")
            self._report(self.job, LogLine(int(time.time() * 1000), shortened(line)))

    def __repr__(self) -> str:
        return f"<Attempt {self.attempt} of {self.task} {self.id}>"

    if not TYPE_CHECKING:  # type checkers know the attributes, and refuse all others

        def __getattr__(self, name: str) -> Any:
            from penstock.core.peer_words import no_attribute  # only for this message

            raise no_attribute(self, "Attempt", name)


#: The running attempt of this task, thread or process; set by the executor around the function.
running: ContextVar[Attempt] = running_attempt


def current_job() -> Attempt:
    """The attempt that runs here. Raises NoCurrentJob outside of one."""
    try:
        return running.get()
    except LookupError:
        raise NoCurrentJob(
            "current_job() works inside a running task only; outside, keep the handle of the enqueue"
        ) from None


# ── checks of progress ───────────────────────────────────────────────────────────────────────────


def _number(name: str, given: Any) -> float:
    """The number in its plain type. A number that no store can keep is refused here, inside its task."""
    number = given if type(given) is int or type(given) is float else _plain(name, given)
    if not -_MAX_EXACT <= number <= _MAX_EXACT:  # refuses nan too
        raise ValueError(f"progress({name}={shown(given)}): give a finite number from -2**53 to 2**53")
    return number


def _plain(name: str, given: Any) -> float:
    """A number of another type, such as IntEnum or numpy.float64, as a plain int or float."""
    if isinstance(given, float):
        return float.__float__(given)
    if not isinstance(given, bool) and hasattr(type(given), "__index__"):
        return int.__index__(operator.index(given))
    raise TypeError(
        f"progress({name}={shown(given)}): give an int or a float, not {type(given).__name__}; "
        "a Decimal or a Fraction goes in as float(...)"
    )


def _note(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"progress(note={shown(given)}): give a text, not {type(given).__name__}")
    return storable((given if type(given) is str else str.__str__(given))[:_LONGEST_NOTE])
