"""The running attempt, as its task sees it: its facts, progress and cancellation."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.core import forks
from penstock.core.errors import AttemptCancelled, Interrupted, PenstockError
from penstock.core.job import Job, Progress
from penstock.core.portable import in_process
from penstock.core.running import Awaited, running_attempt
from penstock.core.text import shown, storable, text_of
from penstock.stores.contract import Store
from penstock.stores.job_log import LINES_KEPT, LogLine, shortened

if TYPE_CHECKING:  # a supervisor loads this module, and no client
    import asyncio

    from penstock.client.options import Options

#: What an attempt reports to its worker.
Reported = Progress | LogLine | Awaited

#: Largest float that is exact to the unit, in every language.
_MAX_EXACT = 2**53
_LONGEST_NOTE = 200
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_waits = forks.lock()


class NoCurrentJob(PenstockError, LookupError):
    """`current_job()` was called outside a running task."""


class StepCall(Protocol):
    """A call of a step's function. `end` gets its value or error; it is cancelled if the call is given up."""

    end: asyncio.Future[Any]

    def withdraw(self) -> bool:
        """End the call if its function has not begun; False if it has."""
        ...

    def interrupt(self, why: type[Interrupted]) -> None:
        """Raise `why` in its thread, once, or kill its process. A call that has not begun never begins."""

    def kill(self) -> None:
        """Kill its process, if it has one."""

    def abandon(self) -> None:
        """Give up its thread, or kill its process: nobody waits for its end any more."""


class StepExecutor(Protocol):
    """Runs functions of steps off the event loop; the worker interrupts them with their attempt."""

    def in_thread(self, owner: Any, function: Callable[[], Any], context: Context) -> StepCall:
        """Call a function for the attempt with this owner in a thread, in this context."""
        ...

    def in_process(self, owner: Any, reference: tuple[str, str], arguments: bytes) -> StepCall:
        """Call a function of a module in a child process, with encoded arguments; it ends with bytes."""
        ...


class StepAccess(NamedTuple):
    """What durable steps need.

    Of the task: its store, options and `run_in`. Of the worker: its lease (ms), event loop and step executor.
    """

    store: Callable[[], Store]
    options: Options
    run_in: str
    lease: int
    loop: asyncio.AbstractEventLoop
    runner: Callable[[], StepExecutor]


class AttemptOwner(Protocol):
    """The worker's view of a running job, for durable steps."""

    @property
    def step_access(self) -> StepAccess | None: ...

    @property
    def interrupt(self) -> type[Interrupted] | None:
        """Why the worker interrupts this attempt; None: it does not, and a CancelledError is the code's."""
        ...

    @property
    def undoes(self) -> str | None:
        """The reason why this run only undoes the stored steps of its flow; None: it runs as usual."""
        ...

    def store_now(self) -> int:
        """The store's clock (ms)."""
        ...


@in_process("send attempt.job, which has all facts")
class Attempt:
    """One attempt of a job, as its function sees it through `current_job()`."""

    __slots__ = (
        "_awaited",
        "_cancelled",
        "_ends",
        "_logged",
        "_report",
        "flow",
        "job",
        "noticed",
        "owner",
        "stopping",
    )

    def __init__(
        self,
        job: Job,
        report: Callable[[Job, Reported], None] | None = None,
        ends: float | None = None,
        owner: AttemptOwner | None = None,
    ) -> None:
        self.job = job
        self.owner = owner
        #: The durable steps of this attempt, once `current_flow()` was called.
        self.flow: Any = None
        #: Whether the worker drains: a long loop of a flow suspends itself and goes on elsewhere.
        self.stopping = False
        #: `time.monotonic()` at which the function noticed that it is to stop; 0: not yet. From then on it
        #: has `cleanup_grace` to clean up.
        self.noticed = 0.0
        self._report = report
        self._ends = ends  # time.monotonic() at which this attempt times out
        self._cancelled = False
        self._logged = 0  # lines of the log
        self._awaited: tuple[str, ...] = ()

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
        """Whether this attempt was asked to stop; check it regularly in long loops.

        Once this was true, the function has the time `cleanup_grace` to clean up before it is interrupted.
        """
        if self._cancelled:
            self.notice()
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raise AttemptCancelled if this attempt was asked to stop."""
        if self.cancelled:
            raise AttemptCancelled("the job was cancelled")

    def ask_to_stop(self) -> None:
        """Set `cancelled`. For the worker."""
        self._cancelled = True

    def wait(self, queues: tuple[str, ...], over: bool = False) -> None:
        """Tell the worker that the attempt waits, or no longer, for jobs of these queues. Thread-safe."""
        with _waits:  # `asyncio.to_thread(handle.result)`, several times
            rest = list(self._awaited)
            for queue in queues:
                if over:
                    rest.remove(queue)
                else:
                    rest.append(queue)
            self._awaited = tuple(rest)
            if self._report is not None:
                self._report(self.job, Awaited(self._awaited))

    def notice(self) -> None:
        """Note that the function knows that it is to stop. For the worker."""
        self.noticed = self.noticed or time.monotonic()

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
