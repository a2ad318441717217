"""Remote stops of workers as faults: a command in the store quiets, drains, stops or restarts one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

from penstock.core.errors import PenstockError
from penstock.inspector.inspector import Inspector
from penstock.stores.contract import WorkerInfo
from penstock.stores.worker_commands import WorkerAct
from penstock.verify.faults.chaos_run import NO_PROCESS, ChaosRun, NoVictim
from penstock.verify.fleet import Member

__all__ = ["REMOTE", "RemoteFaults"]

#: What workers are told, by the name of the fault.
REMOTE = {
    "remote-quiet": WorkerAct.QUIET,
    "remote-drain": WorkerAct.DRAIN,
    "remote-stop": WorkerAct.STOP,
    "remote-restart": WorkerAct.RESTART,
}
#: How long the reply of a worker is waited for (s), which may be killed or stopped meanwhile.
_REPLY = 2.0


class RemoteFaults:
    """Tells one worker of the run something; the run replaces workers that have ended."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def by_kind(self) -> dict[str, Callable[[float, float, float], None]]:
        """What can be done, by the names of the faults."""
        return {kind: partial(self.tell, kind) for kind in REMOTE}

    def tell(self, kind: str, who: float, how: float, _: float) -> None:
        act = REMOTE[kind]
        try:
            with self._run.using:
                member, info = asyncio.run(self._tell(kind, act, who))
        except PenstockError as error:  # the store is away: the fault is retried later
            raise NoVictim from error
        self._run.record(kind, member.name, f"process {info.pid}")
        if act is WorkerAct.QUIET:
            self._run.wait(0.5 + 2 * how)
            member.signal(
                signal.SIGTERM
            )  # a quiet worker fetches no more jobs: another one must take its place

    async def _tell(self, kind: str, act: WorkerAct, who: float) -> tuple[Member, WorkerInfo]:
        store = self._run.app.store
        by_pid = {member.pid: member for member in self._run.fleet.workers if member.alive}
        found = [
            (by_pid[pid], info)
            for info in await store.workers()
            for pid in [info.supervisor or info.pid]
            if pid in by_pid and (act is not WorkerAct.RESTART or info.supervisor is not None)
        ]
        if not found:
            raise NoVictim
        member, info = found[int(who * len(found))]
        member.faulted = True
        self._run.ledger.fault("act", NO_PROCESS, kind)
        await Inspector(store).tell_workers([info.id], act.value, by="verify", timeout=_REPLY)
        return member, info
