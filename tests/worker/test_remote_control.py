"""What a worker answers to the commands of an operator, and what it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock import App
from penstock.stores.contract import WorkerInfo
from penstock.stores.worker_commands import WorkerAct, WorkerCommand
from penstock.worker.remote_control import RemoteControl
from penstock.worker.setup import Supervision


class Told:
    """A worker, and a supervisor, that note what they are told."""

    def __init__(self, state: str = "running") -> None:
        self.said: list[Any] = []
        self._state = state

    def info(self) -> WorkerInfo:
        return WorkerInfo("w1", "box", 1, 0, ("q",), ("t",), 1, state=self._state)

    def quiet(self) -> None:
        self.said.append("quiet")

    def stop(self, *, now: bool = False) -> None:
        self.said.append("stop now" if now else "stop")


def obeyed(
    act: WorkerAct, *, supervised: bool, replaceable: bool = True, state: str = "running"
) -> tuple[bool, list[Any]]:
    """Whether the command was accepted, and what was done."""
    told = Told(state)
    setup: Any = SimpleNamespace(
        app=App("memory://"),
        id="w1",
        supervision=Supervision(ask=told.said.append if supervised else None),
        keeps_jobs_in_memory=not replaceable,
    )
    control = RemoteControl(setup, told, lambda: "stacks")
    reply, then = control.obey(WorkerCommand(act))
    assert told.said == [], "nothing happens before the reply is stored"
    if then is not None:
        then()
    return reply.done, told.said


@pytest.mark.parametrize(
    ("act", "done"),
    [(WorkerAct.QUIET, ["quiet"]), (WorkerAct.DRAIN, ["stop"]), (WorkerAct.STOP, ["stop now"])],
)
def test_a_worker_alone_obeys_itself_and_one_with_a_supervisor_asks_it(
    act: WorkerAct, done: list[str]
) -> None:
    assert obeyed(act, supervised=False) == (True, done)
    assert obeyed(act, supervised=True) == (True, [act])


def test_only_a_supervisor_can_replace_a_worker_and_only_if_its_jobs_are_elsewhere() -> None:
    assert obeyed(WorkerAct.RESTART, supervised=True) == (True, [WorkerAct.RESTART])
    assert obeyed(WorkerAct.RESTART, supervised=False) == (False, [])
    assert obeyed(WorkerAct.RESTART, supervised=True, replaceable=False) == (False, [])
    assert obeyed(WorkerAct.RESTART, supervised=True, state="quiet") == (False, [])


def test_a_worker_that_drains_already_is_not_stopped_by_another_drain() -> None:
    assert obeyed(WorkerAct.DRAIN, supervised=False, state="draining") == (True, [])


def test_stacks_are_reported_by_the_worker_itself() -> None:
    assert obeyed(WorkerAct.STACKS, supervised=True) == (True, [])
