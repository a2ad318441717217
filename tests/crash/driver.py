"""A process that forks worker and producer processes, each of which kills itself at a given crash point.

All modules are imported and no thread runs, so that a fork is cheap and safe. The driver reads one line of
JSON (a `Part`) per process, and writes one line with the exit status of the process.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sqlite3
import sys
from pathlib import Path

import msgspec

from penstock.stores.sqlite import transactions
from penstock.verify.crash_points import Boundary, Point, kill_here
from tests.crash.scenario_run import Leaping, Scene
from tests.crash.scenarios import LIVES

__all__ = ["Part"]


class Part(msgspec.Struct, frozen=True):
    """Who plays in which life, and where he dies: at a point, or, within that call, at a statement of SQL."""

    kind: str
    place: str  # what the store is opened by
    folder: str
    life: str
    who: str
    ahead: int = 0
    dies_at: str = ""
    statement: int = 0  # before which; -1: none, but it writes down which there are


class Statements:
    """Counts the statements of the call that is looked at, and ends the process before one of them."""

    def __init__(self, scene: Scene, part: Part) -> None:
        self.texts: list[str] = []
        self._counting = False
        self._scene, self._part = scene, part
        point = Point.of(part.dies_at)
        points = scene.points[part.who]
        points.at(msgspec.structs.replace(point, boundary=Boundary.BEFORE), self._begin)
        points.at(msgspec.structs.replace(point, boundary=Boundary.LOST), self._end)
        self._open_file = transactions.open_file
        transactions.open_file = self._opened

    def _begin(self) -> None:
        self._counting = True

    def _end(self) -> None:
        self._counting = False
        # only the call itself is looked at; others may be in the same transaction
        Path(self._part.folder, "statements.json").write_bytes(msgspec.json.encode(self.texts))

    def _opened(self, path: Path, patience: int, mode: int) -> sqlite3.Connection:
        cx = self._open_file(path, patience, mode)
        cx.set_trace_callback(self._ran)
        return cx

    def _ran(self, text: str) -> None:
        if not self._counting:
            return
        self.texts.append(text)
        if len(self.texts) == self._part.statement:
            die(self._scene, f"{self._part.dies_at}, statement {self._part.statement}")


def die(scene: Scene, where: str) -> None:
    scene.ledger.fault("kill", os.getpid(), where)
    kill_here()


async def play(part: Part) -> None:
    scene = Scene(LIVES[part.life], part.kind, part.place, Path(part.folder), Leaping(part.ahead))
    scene.app(part.who)
    if part.statement:
        Statements(scene, part)
    elif part.dies_at:
        scene.points[part.who].at(part.dies_at, lambda: die(scene, part.dies_at))
    if part.who == "producer":
        await scene.produce()
    else:
        async with scene.worker(part.who):
            await scene.over()
    scene.close()


def main() -> None:
    logging.disable()
    for store in ("redis.store", "sqlite"):  # imported once, not by each child
        importlib.import_module(f"penstock.stores.{store}")
    for line in sys.stdin:
        part = msgspec.json.decode(line, type=Part)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                asyncio.run(play(part))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
