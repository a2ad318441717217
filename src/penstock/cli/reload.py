"""`penstock worker --reload`: for development, a worker that restarts when the code changes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.config import Config
from penstock.worker.logs import configure_logs

__all__ = ["WatchedFiles", "run_reloading"]

_log = logging.getLogger("penstock.reload")
#: Interval of file checks in seconds. Checking a thousand files takes a few ms.
_EVERY = 0.5
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}


def run_reloading(arguments: Sequence[str], config: Config) -> int:
    """Run the command without --reload, restart it at each change, and return the last exit code."""
    configure_logs(config)
    command = [sys.executable, "-m", "penstock", *(a for a in arguments if a != "--reload")]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _log.info("the worker restarts when a .py file below %s changes", Path.cwd())
    while True:
        watched = WatchedFiles(Path.cwd())
        # in its own process group: this process passes on Ctrl-C, once
        worker = subprocess.Popen(command, start_new_session=True)  # noqa: S603 (the arguments of this process)
        changed = None
        while worker.poll() is None and changed is None and not stop.wait(_EVERY):
            changed = watched.changed()
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        code = _ended(worker, stop)
        if stop.is_set():
            _log.info("stopped (exit code %d)", code)
            return code
        if changed is None:  # the worker ended by itself, perhaps because the code is broken
            _log.info("the worker ended with exit code %d: waiting for a change", code)
            while changed is None and not stop.wait(_EVERY):
                changed = watched.changed()
            if changed is None:
                return code
        _log.info("%s changed: the worker restarts", changed)


def _ended(worker: subprocess.Popen[bytes], stop: threading.Event) -> int:
    """Wait until the worker has ended. A signal during its drain is passed on as its second signal."""
    passed = stop.is_set()
    while True:
        try:
            return worker.wait(0.1)
        except subprocess.TimeoutExpired:
            if stop.is_set() and not passed:
                worker.send_signal(signal.SIGTERM)
                passed = True


class WatchedFiles:
    """The .py files below a directory, with their modification times."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._look()

    def changed(self) -> str | None:
        """Path of a file that was changed, added or removed since the last check, or None."""
        now = self._look()
        if now == self._seen:
            return None
        differing = {path for path, _ in now.items() ^ self._seen.items()}
        return os.path.relpath(min(differing), self._root)

    def _look(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for directory, names, files in os.walk(self._root):
            names[:] = [n for n in names if not n.startswith(".") and n not in _SKIPPED]
            for file in files:
                if file.endswith(".py"):
                    path = os.path.join(directory, file)
                    try:
                        found[path] = os.stat(path).st_mtime_ns
                    except OSError:  # removed after the listing
                        continue
        return found
