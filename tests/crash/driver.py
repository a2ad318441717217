"""A process that forks worker and producer processes, each of which kills itself at a given crash point.

All modules are imported and no thread runs, so that a fork is cheap and safe. The driver reads one line of
JSON (a `ProcessPlan`) per process, and writes one line with the exit status of the process.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import logging
import os
import sqlite3
import sys
from pathlib import Path

import msgspec

from penstock.app import app_settings
from penstock.stores.sqlite import transactions
from penstock.verify.crash_points import Boundary, Point, kill_here
from tests.crash.scenario_run import ShiftedClock, Trial, config
from tests.crash.scenarios import SCENARIOS

__all__ = ["ProcessPlan"]


class ProcessPlan(msgspec.Struct, frozen=True):
    """The process to run in a scenario, and where it is killed: at a point, or at an SQL statement of it."""

    kind: str
    place: str  # what the store is opened by
    folder: str
    scenario: str
    who: str
    ahead: int = 0
    dies_at: str = ""
    statement: int = 0  # before which; -1: none, but it writes down which there are


class Statements:
    """Counts the statements of the call that is looked at, and ends the process before one of them."""

    def __init__(self, trial: Trial, plan: ProcessPlan) -> None:
        self.texts: list[str] = []
        self._counting = False
        self._scene, self._plan = trial, plan
        point = Point.of(plan.dies_at)
        points = trial.points[plan.who]
        points.at(msgspec.structs.replace(point, boundary=Boundary.BEFORE), self._begin)
        points.at(msgspec.structs.replace(point, boundary=Boundary.LOST), self._end)
        self._open_file = transactions.open_file
        transactions.open_file = self._opened

    def _begin(self) -> None:
        self._counting = True

    def _end(self) -> None:
        self._counting = False
        # only the call itself is looked at; others may be in the same transaction
        Path(self._plan.folder, "statements.json").write_bytes(msgspec.json.encode(self.texts))

    def _opened(self, path: Path, patience: int, mode: int) -> sqlite3.Connection:
        cx = self._open_file(path, patience, mode)
        cx.set_trace_callback(self._ran)
        return cx

    def _ran(self, text: str) -> None:
        if not self._counting:
            return
        self.texts.append(text)
        if len(self.texts) == self._plan.statement:
            die(self._scene, f"{self._plan.dies_at}, statement {self._plan.statement}")


def die(trial: Trial, where: str) -> None:
    trial.ledger.fault("kill", os.getpid(), where)
    kill_here()


async def run(plan: ProcessPlan) -> None:
    trial = Trial(
        SCENARIOS[plan.scenario], plan.kind, plan.place, Path(plan.folder), ShiftedClock(plan.ahead)
    )
    trial.app(plan.who)
    if plan.statement:
        Statements(trial, plan)
    elif plan.dies_at:
        trial.points[plan.who].at(plan.dies_at, lambda: die(trial, plan.dies_at))
    if plan.who == "producer":
        await trial.produce()
    else:
        async with trial.worker(plan.who):
            await trial.over()
    trial.close()


def prepare_forks() -> None:
    """Do once what each child would do: read the settings, and look through all objects for garbage."""
    app_settings.load = functools.cache(app_settings.load)
    app_settings.load()
    config()
    gc.collect()
    gc.freeze()


def main() -> None:
    logging.disable()
    for store in ("redis.store", "sqlite"):  # imported once, not by each child
        importlib.import_module(f"penstock.stores.{store}")
    prepare_forks()
    for line in sys.stdin:
        plan = msgspec.json.decode(line, type=ProcessPlan)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                asyncio.run(run(plan))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
