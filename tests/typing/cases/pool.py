"""Types of a pool's jobs, inferred from its handler; a line that ends in `# wrong` must be refused."""

from __future__ import annotations

from typing import assert_type

from penstock.pool import (
    CancelToken,
    JobQueue,
    Pool,
    Stopped,
    ThreadJobQueue,
    ThreadPool,
    spawn,
    spawn_thread,
)


async def mail(to: str) -> int:
    return len(to)


def render(page: int) -> None: ...


async def loops() -> None:
    pool = Pool(mail, workers=2, capacity=10)
    await pool.put("ann@example.org", timeout=1.5)
    await pool.put(17)  # wrong
    assert_type(pool.try_put("bob@example.org"), bool)
    assert_type(pool.cancel(running=True), list[str])
    assert_type(await pool.wait(60), bool)
    assert_type(await pool.stop(drain=False), Stopped[str])
    assert_type(await spawn(mail("ann@example.org")), int)
    Pool(render, workers=1, capacity=1)  # wrong
    Pool(mail, workers=1)  # wrong
    queue: JobQueue[int] = JobQueue(3)
    async for job in queue:
        assert_type(job, int)
    list(queue)  # wrong
    async with Pool(mail, workers=1, capacity=0, on_error=lambda to, error: print(to, error)) as inner:
        assert_type(inner, Pool[str])


def threads() -> None:
    pool = ThreadPool(render, workers=2, capacity=10, token=CancelToken())
    pool.put(1)
    pool.put("one")  # wrong
    assert_type(pool.stop().dropped, tuple[int, ...])
    pool.cancel(running=True)  # wrong
    queue: ThreadJobQueue[bytes] = ThreadJobQueue(3)
    for job in queue:
        assert_type(job, bytes)
    spawn_thread(render, 1)
    spawn_thread(render, "one")  # wrong
