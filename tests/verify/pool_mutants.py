"""Mutants of the process pool with one planted bug each, for the checker to find, and a worker that uses one.

    POOL_MUTANT_FOLDER=… python -m tests.verify.pool_mutants MUTANT

The bug is in the worker; its children are correct.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import App, Worker, current_job
from penstock.config import load
from penstock.verify.ledger import Ledger
from penstock.worker.pools.calls import ChildDied, EncodedResult, ProcessCall
from penstock.worker.pools.child_process import ChildProcess
from penstock.worker.pools.process_pool import ProcessPool
from penstock.worker.pools.shared_state import CallTokens

FOLDER = "POOL_MUTANT_FOLDER"


def takes_back_what_runs(patch: Callable[[type, str, Any], None]) -> None:
    """A call that runs for long is taken back once, like those behind it, and runs elsewhere, too."""
    original, taken = ChildProcess.take_back, set[str]()

    def is_new(call: ProcessCall) -> bool:  # a short one may end before it begins elsewhere
        return call.job.id not in taken and b"long" in call.job.spec.payload

    def take_back(self: ChildProcess) -> list[ProcessCall]:
        behind = original(self)
        begun = [] if self._gone else [call for call in self.calls.values() if is_new(call)]
        taken.update(call.job.id for call in begun)
        self._remove(begun)
        return [*begun, *behind]

    patch(ChildProcess, "take_back", take_back)


def leaves_the_tokens(patch: Callable[[type, str, Any], None]) -> None:
    """The child can still begin the calls that were taken back."""
    original, left = CallTokens.take_back, set[int]()

    def take_back(self: CallTokens) -> list[int]:
        numbers = [number for number in original(self) if number not in left]
        left.update(numbers)
        try:
            self.give(numbers)
        except OSError:  # the child is gone
            pass
        return numbers

    patch(CallTokens, "take_back", take_back)


def charges_all(patch: Callable[[type, str, Any], None]) -> None:
    """The death of a child costs all calls that lay ready in it an attempt."""
    _end_behind(patch, lambda error: (None, error))


def completes_all(patch: Callable[[type, str, Any], None]) -> None:
    """The death of a child completes all calls that lay ready in it."""
    _end_behind(patch, lambda _: (EncodedResult(None), None))


def _end_behind(patch: Callable[[type, str, Any], None], end: Callable[[ChildDied], Any]) -> None:
    original = ProcessPool.died

    def died(self: ProcessPool, child: Any, error: ChildDied, unstarted: list[ProcessCall]) -> None:
        for call in unstarted:
            self.ended(call, *end(error))
        original(self, child, error, [])

    patch(ProcessPool, "died", died)


MUTANTS: dict[str, Callable[[Callable[[type, str, Any], None]], None]] = {
    "none": lambda _: None,
    "takes back what runs": takes_back_what_runs,
    "leaves the tokens": leaves_the_tokens,
    "charges all": charges_all,
    "completes all": completes_all,
}


ledger = Ledger(Path(os.environ.get(FOLDER, os.devnull)) / "ledger")


@ledger.recorded
def work(what: str) -> None:
    """Short, except that some calls take long, and some kill their process in their first attempt."""
    if what == "long":
        time.sleep(0.3)
    if what == "crash" and current_job().attempt == 1:
        ledger.fault("kill", os.getpid(), "os-exit")
        os._exit(3)


def make(folder: Path) -> tuple[App, Any]:
    """The app and its task; the task's function records its attempts."""
    app = App(f"sqlite:///{folder / 'jobs.db'}")
    own = Ledger(folder / "ledger")
    own.watch(app, attempts=False)
    task = app.task(name="work", run_in="process", retry=0.05)(work)
    own.watch_attempts(app)
    return app, task


async def main(mutant: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    MUTANTS[mutant](setattr)
    worker = Worker(app, config=load().config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if FOLDER in os.environ:
    app, _ = make(Path(os.environ[FOLDER]))

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
