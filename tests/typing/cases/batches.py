"""Types of tasks that run in batches. Checked by test_typing.py, never run."""

from typing import assert_type

from penstock import App, Batch, Handle, JobCall

app = App("memory://")


@app.task(batch=Batch(max_size=10, max_wait="5s", grace="1s"))
def index(docs: list[str]) -> int:
    return len(docs)


@app.task(batch=Batch(), queue="mail", max_attempts=3)
async def send(users: list[int]) -> str:
    return str(users)


assert_type(index(["a"]), int)
assert_type(index.enqueue("a"), Handle[None])
assert_type(index.job("a"), JobCall[None])
assert_type(index.using(batch_key="g", delay="5m").enqueue("a"), Handle[None])
assert_type(send.using(batch_key="g").job(1), JobCall[None])


async def producing() -> None:
    assert_type(await send.aenqueue(1), Handle[None])
    assert_type(await send([1]), str)
    await send.aenqueue("a")  # wrong


index.enqueue(1)  # wrong
index.enqueue(["a"])  # wrong
index.enqueue("a", "b")  # wrong
index("a")  # wrong
index.using(batch_key=5)  # wrong
Batch(max_size="10")  # wrong
app.task(batch=5)  # wrong


@app.task(batch=Batch())  # wrong
def two(a: list[int], b: int) -> None: ...


@app.task(batch=Batch())  # wrong
def no_list(a: int) -> None: ...
