"""Types of producing. Checked by test_typing.py, never run.

A line that ends with `# wrong` must be an error for every checker, and no other line may be one.
"""

from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from penstock import (
    App,
    Handle,
    Job,
    JobCall,
    JobDied,
    JobEnqueued,
    NewJob,
    PenstockError,
    RawJob,
    State,
    Taken,
    Task,
    Unique,
    Unkept,
    exponential,
)

app = App("memory://", namespace="a", timeout="5m", retry=exponential(), retention=None)
App(timout=5)  # wrong
App(timeout=[])  # wrong
App(priority=1)  # wrong


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


@app.task
async def send(user_id: int, lang: str = "en") -> str:
    return lang


@app.task
def render(path: str, *, width: int) -> bytes:
    return path.encode() * width


def backoff(attempt: int, error: BaseException, job: Job) -> float:
    return 2.0**attempt


@app.task(queue="mail", priority=5, max_attempts=3, timeout=timedelta(seconds=5), retry=backoff, unique="5m")
async def remind(user_id: int) -> None: ...


@app.task(run_in="process", retry=[1, "5m"], retention="1d", delivery="at-least-once")
def count(text: str) -> int:
    return len(text)


@app.task(unique=Unique(by=["user_id"], states=("queued",), period="10m", replace="run_at"))
def digest(user_id: int, text: str) -> None: ...


@app.task(unique=Unique(key=lambda user_id: user_id % 10, on_conflict="reject"))
def shared(user_id: int) -> None: ...


@app.task(unique=Unique(states=("ready",)))  # wrong
def stateless() -> None: ...


@app.task(unique=Unique(on_conflict="ignore"))  # wrong
def tolerant() -> None: ...


@app.task(unique=Unique(replace=("payload",)))  # wrong
def replacing() -> None: ...


@app.task(unique_key="k")  # wrong
def one_per_key() -> None: ...


@app.task(que="mail")  # wrong
def misspelt() -> None: ...


@app.task(run_in="greenlet")  # wrong
def misplaced() -> None: ...


@app.task(retry=object())  # wrong
def misjudged() -> None: ...


# called, a task is its function

called = assert_type(send(1), Coroutine[Any, Any, str])
assert_type(render("a", width=1), bytes)
assert_type(count("a"), int)
mistaken_call = send("1")  # wrong
render("a")  # wrong

# enqueued, it is a handle of what the function returns

assert_type(send.enqueue(1, lang="de"), Handle[str])
assert_type(render.enqueue("a", width=2), Handle[bytes])
assert_type(remind.enqueue(1), Handle[None])
assert_type(send.enqueue(1).result(timeout=60), str)
assert_type(count.enqueue("a").result(), int)

send.enqueue("x")  # wrong
send.enqueue()  # wrong
send.enqueue(1, 2)  # wrong
send.enqueue(1, language="de")  # wrong
render.enqueue("a", 2)  # wrong
remind.enqueue(user_id="1")  # wrong
count.enqueue(5)  # wrong


async def produce() -> None:
    assert_type(await send.aenqueue(1), Handle[str])
    assert_type(await (await send.aenqueue(1)).aresult(), str)
    assert_type(await send(1), str)
    await send.aenqueue("x")  # wrong
    await count.aenqueue()  # wrong

    assert_type(await app.aenqueue_many([send.job(1)]), list[Handle[str]])
    assert_type(await app.adrained("mail", timeout="5m"), bool)


# one call

later = send.using(delay="5m", queue="low", priority=10, retention=None)
assert_type(send.using(unique_key="user-1", unique=Unique(states="queued")).enqueue(1), Handle[str])
send.using(unique_key=7)  # wrong
assert_type(later.enqueue(1), Handle[str])
assert_type(send.using(run_at=datetime.now(UTC), expires=timedelta(hours=1)).job(1), JobCall[str])
later.enqueue("x")  # wrong
send.using(delay="5m").enqueue()  # wrong
send.using(dely="5m")  # wrong
send.using(run_at="tomorrow")  # wrong
send.using(retry=backoff)  # wrong

# many

assert_type(app.enqueue_many([send.job(n) for n in range(3)]), list[Handle[str]])
send.job("x")  # wrong
app.enqueue_many([1])  # wrong

# many results

assert_type(app.results([send.enqueue(1)], timeout="5s"), list[str])
assert_type(app.results([count.enqueue("a")], return_errors=True), list[int | PenstockError])
assert_type([handle.result() for handle in app.as_completed([count.enqueue("a")])], list[int])
assert_type([progress.of for progress in send.enqueue(1).follow_progress()], list[int | float | None])
app.results(["id"])  # wrong


async def gather() -> None:
    assert_type(await app.aresults([await send.aenqueue(1)]), list[str])
    async for ended in app.as_completed([await send.aenqueue(1)]):
        assert_type(ended, Handle[str])


# a function that takes a task


def all_of(task: Task[[int], Any], numbers: list[int]) -> list[Handle[Any]]:
    return [task.enqueue(number) for number in numbers]


all_of(remind, [1])
all_of(count, [1])  # wrong


# ── handles ──────────────────────────────────────────────────────────────────────────────────────

handle = app.handle("order-17", queue="orders")
assert_type(handle, Handle[Any])
assert_type(app.handle("order-17", task=send), Handle[str])
assert_type(handle.status(), State | Unkept)
assert_type(handle.cancel(), State | None)
assert_type(handle.job(), Job | None)
handle.reschedule(delay="5m")
handle.reschedule("5m")  # wrong
result: int = app.handle("order-17", task=send).result()  # wrong


async def take() -> None:
    async with app.take("mail") as job:
        assert_type(job, Taken)
        job.progress(1, of=2)
    async with app.take("mail", wait="5s") as maybe:
        assert_type(maybe, Taken | None)
        maybe.progress(1)  # wrong


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────


@app.handler(queue="legacy", timeout="5s")
async def handle_raw(job: RawJob) -> None: ...


@app.handler(queue="legacy")  # wrong
async def handle_text(job: str) -> None: ...


@app.around_attempt
async def timing(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


@app.around_enqueue(queue="mail")
def stamp(new: NewJob) -> NewJob:
    return new


@app.around_enqueue(task=send)  # wrong
def forget(new: NewJob) -> None: ...


@app.on(JobDied)
def alarm(event: JobDied) -> None: ...


@app.on(JobEnqueued)  # wrong
def mistaken(event: JobDied) -> None: ...


@app.on_startup
async def connect(app: App) -> None: ...


app.enqueue_raw("legacy", b"\x00", delay="5m")
app.enqueue_raw("legacy", "text")  # wrong
app.enqueue_raw("legacy", b"", queue="other")  # wrong


# what recurs


@app.periodic("*/5 * * * *", tz="Europe/Berlin", args=[1], misfire="all", overlap="skip", jitter="5s")
@app.task
async def recurring(n: int) -> str:
    return str(n)


assert_type(recurring.enqueue(1), Handle[str])
app.periodic(every="30s", task=recurring.using(queue="low"), kwargs={"n": 1}, name="low")
app.periodic("@daily", task=recurring, misfire="twice")  # wrong
app.periodic("@daily", overlaps="skip")  # wrong
app.periodic(30)  # wrong
