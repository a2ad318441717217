"""An embedded worker without a supervisor: `python -m penstock.verify.workload.lone [SECONDS]`.

SECONDS sets the worker's wall clock ahead by this many seconds, or behind if it is negative.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

from penstock.config import load
from penstock.verify.workload.tasks import app
from penstock.worker import Worker


def main(ahead: str = "0") -> None:
    """Run the worker until SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    if int(ahead):
        _set_clock(int(ahead))
    asyncio.run(_serve())


def _set_clock(ahead: int) -> None:
    """Shift the wall clock of this process. The ledger corrects it with the monotonic clock."""
    true = time.time_ns
    time.time_ns = lambda: true() + ahead * 1_000_000_000
    time.time = lambda: true() / 1e9 + ahead


async def _serve() -> None:
    worker = Worker(app, concurrency=10, config=load().config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
