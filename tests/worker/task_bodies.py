"""The bodies of the tests' tasks, the same in each executor; child processes import them from here."""

from __future__ import annotations

import asyncio
import builtins
import os
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.app.task import Task
from penstock.core.job import Job
from penstock.core.relations import Batch
from penstock.errors import AttemptTimeout, Cancel, Discard, Interrupted, RateLimited, Retry, Snooze

#: The registry of child processes; a test registers the same tasks with an app of its own.
app = App("memory://")


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def act(how: str) -> Any:
    """Come back, or raise."""
    match how:
        case "return":
            return f"done in attempt {current_job().attempt}"
        case "facts":
            job = current_job()
            return {"id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}
        case "remaining":
            return current_job().remaining()
        case "clock":
            began, left = time.monotonic(), current_job().remaining()
            return [began, left, time.monotonic()]
        case "raise":
            raise ValueError("it is wrong")
        case "raise at first":
            if current_job().attempt < 3:
                raise ValueError(f"attempt {current_job().attempt} is wrong")
            return f"done in attempt {current_job().attempt}"
        case "retry":
            raise Retry("not yet", delay="1h")
        case "snooze":
            raise Snooze("1h")
        case "discard":
            raise Discard("never again")
        case "cancel":
            raise Cancel("not wanted")
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "timeout":
            raise AttemptTimeout("of its own")
        case "unshowable":
            raise Unshowable
        case "unencodable":
            return {"found": [0, 1j]}
    raise AssertionError(how)


async def act_async(how: str) -> Any:
    return act(how)


def note(path: str, line: str = "") -> None:
    """Leave a line that other processes can see: one per start."""
    with open(path, "a") as file:
        file.write(f"{line or os.getpid()}\n")


def lines(path: Path | str) -> list[str]:
    """What was noted there."""
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def linger(path: str, seconds: float = 60.0) -> str:
    """Say that it has begun, then stay until the time is over or somebody interrupts."""
    note(path)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.002)
    return "stayed"


async def linger_async(path: str, seconds: float = 60.0) -> str:
    note(path)
    await asyncio.sleep(seconds)
    return "stayed"


def heed(path: str) -> str:
    """Stay until `cancelled` says to stop, and come back in peace."""
    note(path)
    while not current_job().cancelled:
        time.sleep(0.002)
    return "came back"


def obey(path: str) -> str:
    note(path)
    while True:
        current_job().raise_if_cancelled()
        time.sleep(0.002)


def swallow(path: str) -> str:
    """Swallow the exception that is to end it, and stay until a file says so."""
    note(path)
    gate, ends = Path(f"{path}.go"), time.monotonic() + 8
    while not gate.exists() and time.monotonic() < ends:  # a test that fails must not hang
        try:
            while not gate.exists() and time.monotonic() < ends:
                time.sleep(0.002)
        except Interrupted as error:
            note(f"{path}.swallowed", type(error).__name__)
    return "too late"


async def swallow_async(path: str) -> str:
    note(path)
    gate, ends = Path(f"{path}.go"), time.monotonic() + 8
    while not gate.exists() and time.monotonic() < ends:
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note(f"{path}.swallowed", "CancelledError")
    return "too late"


def soon(attempt: int, error: BaseException, job: Job) -> float:
    assert isinstance(error, ValueError)
    return 1000.0 * attempt


def no_idea(attempt: int, error: BaseException, job: Job) -> float:
    raise LookupError("the retry function is wrong too")


def fail_soon() -> None:
    raise ValueError("it is wrong")


def fail_without_idea() -> None:
    raise ValueError("it is wrong")


async def fail_soon_async() -> None:
    raise ValueError("it is wrong")


async def fail_without_idea_async() -> None:
    raise ValueError("it is wrong")


def stumble(text: str) -> None:
    """Fail with this text."""
    raise ValueError(text)


async def stumble_async(text: str) -> None:
    raise ValueError(text)


def typed(when: datetime, size: tuple[int, str]) -> dict[str, datetime]:
    assert when.tzinfo is UTC, "the argument came back as something else"
    return {f"{size[1]}{size[0]}": when}


async def typed_async(when: datetime, size: tuple[int, str]) -> dict[str, datetime]:
    return typed(when, size)


def tell(path: str, done: Any = 3) -> str:
    """Say how far it is, and stay until a file says so."""
    current_job().progress(_read(done), of=7, note="on the way")
    current_job().log("on the way")
    while not Path(path).exists():
        time.sleep(0.002)
    return "told"


def _read(said: Any) -> Any:
    """What JSON has no word for comes as text."""
    return {"nan": float("nan"), "huge": 10**30}.get(said, said)


async def tell_async(path: str, done: Any = 3) -> str:
    current_job().progress(_read(done), of=7, note="on the way")
    current_job().log("on the way")
    while not Path(path).exists():
        await asyncio.sleep(0.002)
    return "told"


def judged(kind: str) -> None:
    """Raise an error of this class."""
    raise getattr(builtins, kind)("it is wrong")


async def judged_async(kind: str) -> None:
    judged(kind)


#: Of the file system, only what may come back is worth another attempt.
RULES: dict[str, Any] = {"retry": "1h", "retry_on": (OSError,), "discard_on": (FileNotFoundError,)}


def forgiven(kind: str) -> None:
    judged(kind)


async def forgiven_async(kind: str) -> None:
    judged(kind)


def counts(error: BaseException) -> bool:
    if isinstance(error, KeyError):
        raise RuntimeError("is_failure is wrong too")
    return not isinstance(error, ConnectionError)


FORGIVING: dict[str, Any] = {"retry": "1h", "is_failure": counts}


def greet(name: str, times: int = 1) -> str:
    return f"hello {name}" * times


async def greet_async(name: str, times: int = 1) -> str:
    return greet(name, times)


def upgrade(old: dict[str, Any]) -> Any:
    """It used to take `first` and `last`."""
    match old:
        case {"first": str(first), "last": str(last)}:
            return {"name": f"{first} {last}"}
        case {"first": 0}:
            return None
        case {"first": 1}:
            return {"surname": "Lovelace"}
        case {"first": 2}:
            return {"name": object()}
    raise KeyError("last")


MOVED: dict[str, Any] = {"aliases": ("old.greet", "older.greet"), "upgrade": upgrade}


def fill(size: int) -> str:
    """A result that takes so many bytes as JSON."""
    return "x" * (size - 2)


async def fill_async(size: int) -> str:
    return fill(size)


#: How the tasks that run in batches collect their jobs.
COLLECTED = Batch(max_size=3, max_wait="50ms")


def collect(items: list[str]) -> dict[str, Any]:
    """A batch: fails as long as one of its items says so, and else tells what it knows of itself."""
    job = current_job()
    if "dead" in items or ("fail once" in items and job.attempt == 1):
        raise ValueError("one of them is wrong")
    return {"items": items, "batch_key": job.batch_key, "members": list(job.members), "attempt": job.attempt}


async def collect_async(items: list[str]) -> dict[str, Any]:
    return collect(items)


# ── what user code may come up with ──────────────────────────────────────────────────────────────


class Words(str):
    def __len__(self) -> int:
        raise RuntimeError("no length")


class Oddly(Exception):
    def __str__(self) -> str:
        return Words("words of their own")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)

    def __repr__(self) -> str:
        raise SystemExit(5)

    def __reduce__(self) -> Any:
        raise SystemExit(6)


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Unnamed(Exception, metaclass=Nameless):
    pass


class Ours(BaseException):
    pass


class Forgetful:
    """Begins without those whose place it takes."""

    def __init__(self) -> None:
        pass


class ForgetfulCancel(Forgetful, Cancel):
    pass


class ForgetfulDiscard(Forgetful, Discard):
    pass


class ForgetfulRetry(Forgetful, Retry):
    pass


class ForgetfulSnooze(Forgetful, Snooze):
    pass


class ForgetfulLimited(Forgetful, RateLimited):
    pass


class Posing:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


def _deep_cause() -> BaseException:
    error: BaseException = ValueError("the first")
    for i in range(3_000):
        later = ValueError(f"number {i}")
        later.__cause__ = error
        error = later
    return error


def _deep_group() -> BaseException:
    error: Exception = ValueError("inside")
    for _ in range(2_000):
        error = ExceptionGroup("around", [error])
    return error


def _deep_list() -> Any:
    found: list[Any] = []
    for _ in range(50_000):
        found = [found]
    return found


#: What an attempt raises, or returns: how its job stands then, and the kind of its error.
ODD_ENDS: dict[str, tuple[Any, str, str | None]] = {
    "cancel with a number": (lambda: Cancel(404), "cancelled", None),  # type: ignore[arg-type]
    "cancel with nothing": (lambda: Cancel(None), "cancelled", None),  # type: ignore[arg-type]
    "cancel with what has no words": (lambda: Cancel(Leaving()), "cancelled", None),  # type: ignore[arg-type]
    "cancel with half a character": (lambda: Cancel("caf\udce9 \0"), "cancelled", None),
    "cancel of a forgetful class": (ForgetfulCancel, "cancelled", None),
    "discard with a class": (lambda: Discard(object), "dead", "Discard"),  # type: ignore[arg-type]
    "discard of a forgetful class": (ForgetfulDiscard, "dead", "ForgetfulDiscard"),
    "retry of a forgetful class": (ForgetfulRetry, "retryable", "ForgetfulRetry"),
    "retry with a strange delay": (lambda: Retry(delay=object()), "retryable", "ConfigError"),  # type: ignore[arg-type]
    "snooze with no duration": (lambda: Snooze("x"), "retryable", "ConfigError"),
    "snooze for ever": (lambda: Snooze(10**5000), "retryable", "ValueError"),
    "snooze for nan": (lambda: Snooze(float("nan")), "retryable", "ConfigError"),
    "snooze of a forgetful class": (ForgetfulSnooze, "retryable", "ForgetfulSnooze"),
    "too fast for a forgetful class": (ForgetfulLimited, "retryable", "ForgetfulLimited"),
    "too fast for no duration": (lambda: RateLimited([]), "retryable", "ConfigError"),  # type: ignore[arg-type]
    "words of a strange kind": (Oddly, "retryable", "Oddly"),
    "words that leave": (Leaving, "retryable", "Leaving"),
    "no name": (Unnamed, "retryable", "Unnamed"),
    "half a character": (lambda: ValueError("caf\udce9 \0"), "retryable", "ValueError"),
    "a base exception": (lambda: Ours("ours"), "retryable", "Ours"),
    "a generator's exit": (GeneratorExit, "retryable", "GeneratorExit"),
    "an end of iteration": (StopAsyncIteration, "retryable", None),
    "a group": (lambda: ExceptionGroup("two", [ValueError("1"), Leaving()]), "retryable", "ExceptionGroup"),
    "a deep chain": (_deep_cause, "retryable", "ValueError"),
    "a deep group": (_deep_group, "retryable", "ExceptionGroup"),
    "return what is deep": (_deep_list, "dead", "ResultError"),
    "return what is huge": (lambda: 10**5000, "dead", "ResultError"),
    "return half a character": (lambda: "caf\udce9", "dead", "ResultError"),
    "return what poses": (Posing, "dead", "ResultError"),
    "return what leaves": (Leaving, "dead", "ResultError"),
}


def end_oddly(how: str) -> Any:
    found = ODD_ENDS[how][0]()
    if how.startswith("return "):
        return found
    raise found


async def end_oddly_async(how: str) -> Any:
    return end_oddly(how)


def no_rule(*_: Any) -> Any:
    raise SystemExit("a rule that leaves")


NO_RULES: dict[str, Any] = {"retry": no_rule, "is_failure": no_rule}


def fail_by_no_rule() -> None:
    raise ValueError("it is wrong")


async def fail_by_no_rule_async() -> None:
    raise ValueError("it is wrong")


def fork_on(how: str) -> int:
    """Fork, and go on in the child as a program does; returns the child's exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: this process has threads
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if how == "exit":
        sys.exit(3)
    if how == "fail":
        raise ValueError("of the child")
    return 77


async def fork_on_async(how: str) -> int:
    await asyncio.sleep(0)
    return fork_on(how)


def await_result(url: str, id: str) -> Any:
    """Wait inside the slot for the result of a job, as `child.enqueue().result()` does."""
    app = App(url)
    try:
        return app.handle(id).result()
    finally:
        app.close()


async def await_result_async(url: str, id: str) -> Any:
    app = App(url)
    try:
        return await app.handle(id).aresult()
    finally:
        app.close()


_ASYNC: dict[str, Any] = {
    name.removesuffix("_async"): deed for name, deed in list(globals().items()) if name.endswith("_async")
}

for _deed in (act, linger, heed, obey, swallow, typed, tell, fill, stumble, fork_on, await_result):
    app.task(name=_deed.__name__, run_in="process")(_deed)
app.task(name="end_oddly", run_in="process", retry="1h")(end_oddly)
app.task(name="fail_by_no_rule", run_in="process", **NO_RULES)(fail_by_no_rule)
app.task(name="judged", run_in="process", **RULES)(judged)
app.task(name="forgiven", run_in="process", **FORGIVING)(forgiven)
app.task(name="collect", run_in="process", batch=COLLECTED, retry="1ms", max_attempts=2)(collect)
app.task(name="greet", run_in="process", **MOVED)(greet)
app.task(name="fail_soon", run_in="process", retry=soon)(fail_soon)
app.task(name="fail_without_idea", run_in="process", retry=no_idea)(fail_without_idea)


def made(app: App, run_in: str, deed: Any, **options: Any) -> Task[..., Any]:
    """The deed as a task of this app, in this executor."""
    name = deed.__name__
    function = _ASYNC[name] if run_in == "async" else deed
    options.setdefault("name", name)
    return app.task(run_in=run_in, **options)(function)  # type: ignore[call-overload, no-any-return]
