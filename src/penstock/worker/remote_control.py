"""What each command of an operator makes a worker do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.stores.contract import WorkerInfo
from penstock.stores.worker_commands import CommandReply, WorkerAct, WorkerCommand
from penstock.worker.command_reader import Obedience

__all__ = ["RemoteControl"]

_SAYS = {
    WorkerAct.QUIET: "fetches no more jobs",
    WorkerAct.DRAIN: "drains, then ends",
    WorkerAct.STOP: "ends at once",
    WorkerAct.RESTART: "drains when its replacement is ready, then ends",
}


class Controlled(Protocol):
    """The worker that obeys."""

    def info(self) -> WorkerInfo: ...
    def quiet(self) -> None: ...
    def stop(self, *, now: bool = False) -> None: ...


class RemoteControl:
    """Obeys commands for one worker. `ask_supervisor` sends an act to its supervisor; None: it has none.

    `replaceable`: whether another process could run the jobs; not if they are in the memory of this one.
    `stacks` makes the report of what the worker does.
    """

    def __init__(
        self,
        worker: Controlled,
        ask_supervisor: Callable[[WorkerAct], None] | None,
        *,
        replaceable: bool,
        stacks: Callable[[], str],
    ) -> None:
        self._worker = worker
        self._ask_supervisor = ask_supervisor
        self._replaceable = replaceable
        self._stacks = stacks

    def obey(self, command: WorkerCommand) -> Obedience:
        """The answer to a command, and the act that follows it."""
        act, ask = command.act, self._ask_supervisor
        if act is WorkerAct.STACKS:
            return Obedience(CommandReply(True, self._stacks()))
        state = self._worker.info().state
        if act is WorkerAct.RESTART and (why := self._why_not_replaced(state)):
            return Obedience(CommandReply(False, why))
        if act is WorkerAct.DRAIN and state == "draining":
            return Obedience(CommandReply(True, "drains already"))
        if ask is not None:
            others = "" if act is WorkerAct.RESTART else ", with all processes of its supervisor"
            return Obedience(CommandReply(True, _SAYS[act] + others), lambda: ask(act))
        if act is WorkerAct.RESTART:
            why = "it has no supervisor that could start a replacement; `penstock worker` starts one"
            return Obedience(CommandReply(False, why))
        return Obedience(CommandReply(True, _SAYS[act]), self._own(act))

    def _why_not_replaced(self, state: str) -> str | None:
        if not self._replaceable:
            return "its jobs are in its memory: a replacement would not have them"
        return None if state == "running" else f"it is {state}: drain it, and start another worker"

    def _own(self, act: WorkerAct) -> Callable[[], None]:
        if act is WorkerAct.QUIET:
            return self._worker.quiet
        return lambda: self._worker.stop(now=act is WorkerAct.STOP)
