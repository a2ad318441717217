"""Starts the demo's workers under a supervisor, kills one of them, and stops all at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from penstock.core.job import State
from penstock.demo.children import children_in
from penstock.demo.demo_folder import DemoFailed, DemoFolder, DemoProgress
from penstock.stores.contract import Store
from penstock.verify.ledger import Ledger

__all__ = ["QUEUES", "Killer", "wait_for", "workers"]

QUEUES = ("parse", "read", "sum")
#: Timeout without any completed job (s).
_PATIENCE = 60.0
_LOOK = 0.1
_UNDONE = (State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.PARKED)


@contextlib.contextmanager
def workers(
    folder: DemoFolder,
    processes: int,
    *,
    app: str = "penstock.demo.tasks:app",
    queues: Sequence[str] = QUEUES,
    drain: str = "30s",
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `penstock worker` with this many processes during the block; they share the cores."""
    command = [sys.executable, "-m", "penstock", "worker", app, "--drain-timeout", drain]
    options = ["--queues", ",".join(queues), "--processes", str(processes), "--concurrency", "20"]
    slots = max(1, (os.cpu_count() or 1) // processes)
    environment = {"PENSTOCK_PROCESS_SLOTS": str(slots), **os.environ}
    with folder.log.open("ab") as log:
        supervisor = subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
            [*command, *options], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield supervisor
    finally:
        _end(supervisor)


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """Stop the workers: drain, then stop at once, then kill.

    After Ctrl-C at a terminal they have already got one signal, so the first one here stops them at once.
    """
    for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            supervisor.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(patience)
            return


def wait_for(
    queues: Sequence[str],
    of: dict[str, int],
    store: Store,
    supervisor: subprocess.Popen[bytes],
    folder: DemoFolder,
    tell: Callable[[DemoProgress], None],
    killer: Killer | None,
) -> None:
    """Wait until no unfinished job is left in these queues, and let the killer act meanwhile."""
    seen, changed = -1, time.monotonic()
    while True:
        counts = {info.name: info.counts for info in store.sync.queues()}
        done = {name: counts.get(name, {}).get(State.COMPLETED, 0) for name in of}
        news = killer.look(done, of) if killer is not None else ""
        tell(DemoProgress(done, of, news, children_in(folder.children)))
        if not any(counts.get(name, {}).get(state) for name in queues for state in _UNDONE):
            return
        if sum(done.values()) != seen:
            seen, changed = sum(done.values()), time.monotonic()
        if supervisor.poll() is not None:
            raise DemoFailed(
                f"the workers ended too soon (exit code {supervisor.returncode}): see {folder.log}"
            )
        if time.monotonic() - changed > _PATIENCE:
            raise DemoFailed(f"nothing was completed for {_PATIENCE:.0f} s: see {folder.log}")
        time.sleep(_LOOK)


class Killer:
    """Kills one worker process with SIGKILL once 40 % of the parse jobs are done, while its children run.

    The worker and its children are stopped with SIGSTOP first, to know exactly what they run.
    """

    def __init__(self, folder: DemoFolder, share: float = 0.4) -> None:
        self._folder = folder
        self._ledger = Ledger(folder.ledger, note="the demo's killer") if folder.with_ledger else None
        self._share = share
        self._done = False

    def look(self, done: dict[str, int], of: dict[str, int]) -> str:
        """Kill a process if it is time. Returns a message about the kill, or an empty text."""
        if self._done or done["parse"] < self._share * of["parse"]:
            return ""
        for pid, _ in self._busy().most_common():
            if held := self._kill(pid):
                self._done = True
                return f"worker process {pid} was killed by SIGKILL while it ran {held} job(s)"
        return ""

    def _busy(self) -> Counter[int]:
        """Number of jobs that the children run now, per worker process."""
        return Counter(child.worker for child in children_in(self._folder.children) if child.since)

    def _kill(self, pid: int) -> int:
        children = [child.pid for child in children_in(self._folder.children) if child.worker == pid]
        stopped = [one for one in (pid, *children) if _signal(one, signal.SIGSTOP)]
        held = self._busy()[pid] if pid in stopped else 0
        if held:
            if self._ledger is None:
                os.kill(pid, signal.SIGKILL)
            else:
                self._ledger.kill(pid)
        if not held:  # else the children die stopped: awake, one could start a job after the recorded kill
            for one in stopped:
                _signal(one, signal.SIGCONT)
        return held


def _signal(pid: int, number: int) -> bool:
    """Send this signal; False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
