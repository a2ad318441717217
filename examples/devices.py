"""Commands to devices: at a set time, in order per device, and retried while a device is offline."""

from __future__ import annotations

import asyncio
import logging

from penstock import App, Worker
from penstock.errors import Retry

logging.getLogger("penstock").setLevel(logging.ERROR)  # an offline device is no reason for a warning
app = App("memory://")  # sqlite:///jobs.db or redis://… and more workers: the order is the same

done: dict[str, list[str]] = {"d1": [], "d2": [], "d3": []}
tries: dict[tuple[str, str], int] = {}
busy: set[str] = set()
collisions: list[str] = []
finished = asyncio.Event()


@app.task(concurrency_key="device", ordered=True, max_attempts=10)
async def command(device: str, what: str) -> None:
    """Send a command to a device. The device's next command waits until this one has succeeded."""
    if device in busy:
        collisions.append(device)
    busy.add(device)
    try:
        tries[device, what] = tries.get((device, what), 0) + 1
        await asyncio.sleep(0.01)
        if device == "d2" and tries[device, what] < 3 and what == "lock":
            raise Retry(delay=0.05)  # offline: this blocks only the device's own commands
        done[device].append(what)
        if sum(map(len, done.values())) == 9:
            finished.set()
    finally:
        busy.discard(device)


async def produce() -> None:
    """Run two producers at the same time; the commands of one device come from one producer."""

    async def tell(device: str) -> None:
        for what in ("lock", "blink", "unlock"):
            later = "500ms" if (device, what) == ("d3", "lock") else 0
            await command.using(delay=later).aenqueue(device, what)

    async def one() -> None:
        await tell("d1")
        await tell("d2")

    await asyncio.gather(one(), tell("d3"))


async def main() -> None:
    await produce()
    print("9 commands to 3 devices, stored by 2 producers; the first of d3 is for later")
    worker = Worker(app, concurrency=10)
    running = asyncio.create_task(worker.run())
    await finished.wait()
    worker.stop()
    await running
    for device, commands in done.items():
        offline = tries[device, "lock"]
        note = f" (lock was tried {offline} times: the device was offline)" if offline > 1 else ""
        print(f"{device}: {', '.join(commands)}{note}")
    print(f"two things at once: {collisions}" if collisions else "no device was ever told two things at once")


if __name__ == "__main__":
    asyncio.run(main())
