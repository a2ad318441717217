"""`current_job()`: its progress accepts every value that stores can keep; it knows what it waits for."""

from __future__ import annotations

import enum
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from penstock.app.attempt import Attempt
from penstock.core.job import Job, NewJob, Progress, State
from penstock.core.running import Awaited

JOB = Job(NewJob("id", "task"), State.RUNNING, attempt=1)


class Step(enum.IntEnum):
    THIRD = 3


class Share(float):
    """As numpy.float64 is one."""

    def __repr__(self) -> str:
        return "a share"


class Count:
    """As numpy.int64 is one: no int, but a whole number."""

    def __index__(self) -> int:
        return 3


class Words(str):
    pass


def said(*args: Any, **kwargs: Any) -> list[Progress]:
    told: list[Progress] = []
    Attempt(JOB, lambda _, progress: told.append(progress)).progress(*args, **kwargs)
    return told


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((3,), Progress(3)),
        ((0.5, 1), Progress(0.5, 1)),
        ((Step.THIRD, Share(7.5)), Progress(3, 7.5)),
        ((Count(), 4), Progress(3, 4)),
        ((-(2**53), 2**53), Progress(-(2**53), 2**53)),
        ((1, None, Words("half")), Progress(1, None, "half")),
        ((1, None, "x" * 1000), Progress(1, None, "x" * 200)),
        ((1, None, "caf\udce9"), Progress(1, None, "caf\\udce9")),
    ],
)
def test_progress_that_can_be_kept_is_kept_in_plain_types(given: Any, kept: Progress) -> None:
    (progress,) = said(*given)
    assert progress == kept
    assert {type(progress.done), type(progress.of)} <= {int, float, type(None)}
    assert type(progress.note) is str
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(progress), type=Progress)
    assert again == kept, "it comes back as it went"


@pytest.mark.parametrize(
    ("given", "error", "names"),
    [
        (("50%",), TypeError, "'50%'"),
        ((None,), TypeError, "None"),
        ((True,), TypeError, "True"),
        ((Decimal("0.5"),), TypeError, "Decimal"),
        ((Fraction(1, 2),), TypeError, "Fraction"),
        ((1, "4"), TypeError, "of='4'"),
        ((1, False), TypeError, "of=False"),
        ((1j,), TypeError, "1j"),
        ((10**30,), ValueError, "done=1000"),
        ((10**5000,), ValueError, "done"),
        ((1, float("inf")), ValueError, "of=inf"),
        ((float("nan"),), ValueError, "done=nan"),
        ((1e300,), ValueError, "done=1e"),
        ((1, 2, None), TypeError, "note=None"),
        ((1, 2, b"half"), TypeError, "note=b'half'"),
    ],
)
def test_progress_that_cannot_be_kept_is_refused_at_the_call(
    given: Any, error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names.replace("(", r"\(")):
        said(*given)


def test_it_is_refused_also_where_nobody_listens() -> None:
    with pytest.raises(TypeError, match="'50%'"):
        Attempt(JOB).progress("50%")  # type: ignore[arg-type]


def test_threads_of_one_attempt_may_wait_for_results_at_the_same_time() -> None:
    """As `asyncio.to_thread(handle.result)` does, which copies the context of the job."""
    told: list[Any] = []
    attempt = Attempt(JOB, lambda _, report: told.append(report))

    queues = tuple(map(str, range(100)))

    def wait() -> None:
        for _ in range(100):
            attempt.wait(queues)
            attempt.wait(queues, over=True)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(wait) for _ in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(before)
    assert told[-1] == Awaited(())
