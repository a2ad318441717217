"""Functions that steps call in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from penstock import current_job

__all__ = [
    "Refused",
    "add",
    "charges",
    "die",
    "die_once",
    "dies_beside_a_child",
    "later",
    "own_job",
    "own_pid",
    "refuse",
    "sleeps",
]


class Refused(Exception):
    def __init__(self, item: str, wanted: int) -> None:
        super().__init__(f"no {item}")
        self.item, self.wanted = item, wanted

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int]]:
        return Refused, (self.item, self.wanted)


def add(left: int, *, right: int) -> int:
    print("the output of the worker")
    return left + right


def own_pid() -> int:
    return os.getpid()


def own_job() -> str:
    return current_job().id


async def later(value: object, *, right: int) -> object:
    raise AssertionError("it was called")


def dies_beside_a_child() -> None:
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os._exit(3)


def charges(begun: str) -> None:
    path = Path(begun)
    path.touch()
    while not (path.parent / "go").exists():
        time.sleep(0.01)
    path.write_text("charged")


def refuse() -> None:
    raise Refused("book", 3)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(3)
    return "alive"


def sleeps(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)
