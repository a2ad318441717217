"""No-ops with ardiq: `python -m ardiq run ardiq_program:app`, and `python ardiq_program.py COMMAND`."""

import asyncio

import counts
from ardiq import Ardiq

app = Ardiq(counts.URL)


@app.task(name="noop")
async def noop() -> None:
    counts.count()


@app.task(name="stamp")
async def stamp(sent: int) -> None:
    counts.instant(sent)


if __name__ == "__main__":
    asyncio.run(counts.aproduce("ardiq", noop.enqueue, stamp.enqueue))
