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
from penstock.demo.demo_folder import DemoFailed, DemoFolder, DemoProgress
from penstock.stores.contract import Store
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.reading.history import read

__all__ = ["QUEUES", "Killer", "wait_for", "workers"]

QUEUES = ("parse", "read", "sum")
#: Timeout without any completed job (s).
_PATIENCE = 60.0
_LOOK = 0.02
_UNDONE = (State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.PARKED)


@contextlib.contextmanager
def workers(folder: DemoFolder, processes: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `penstock worker` with this many processes during the block."""
    command = [sys.executable, "-m", "penstock", "worker", "penstock.demo.tasks:app"]
    options = ["--queues", ",".join(QUEUES), "--processes", str(processes), "--concurrency", "20"]
    with folder.log.open("ab") as log:
        supervisor = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 (a program of ours, in words of ours)
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
        tell(DemoProgress(done, of, news))
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
    """Kills one worker process with SIGKILL once 40 % of the parse jobs are done, while it runs some.

    The process is stopped with SIGSTOP first, to know exactly which jobs it runs.
    """

    def __init__(self, folder: DemoFolder, supervisor: int, share: float = 0.4) -> None:
        self._ledger = Ledger(folder.ledger, note="the demo's killer")
        self._supervisor = supervisor
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
        """Number of running attempts per worker process of the demo, according to the ledger."""
        history = read(self._ledger.directory)
        runs = [run for story in history.stories for run in story.runs if run.end is None]
        busy = Counter(run.start.pid for run in runs)
        return Counter({pid: n for pid, n in busy.items() if history.parents.get(pid) == self._supervisor})

    def _kill(self, pid: int) -> int:
        try:
            os.kill(pid, signal.SIGSTOP)
            held = self._busy()[pid]
            if held:
                self._ledger.kill(pid)
            else:
                os.kill(pid, signal.SIGCONT)
            return held
        except ProcessLookupError:  # the process has ended by itself
            return 0
