"""Restarts a command when the code changes, for development: `penstock worker --reload`, `penstock dev`."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.config import Config
from penstock.worker.logs import configure_logs

_log = logging.getLogger("penstock.reload")
#: Interval of file checks in seconds. Checking a thousand files takes a few ms.
_EVERY = 0.5
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}
_SETTINGS = "penstock.toml"
#: Cached code is compared by second and size: after two quick changes, the code of the first would run.
_NO_CACHE = {"PYTHONDONTWRITEBYTECODE": "1"}


class _StopRequests:
    """Counts the signals that ask to stop: Ctrl-C, TERM, or the end of the terminal.

    The command runs in a session of its own, which outlives a terminal.
    """

    def __init__(self) -> None:
        self.count = 0
        self._any = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # under nohup
                signal.signal(number, lambda *_: self._add())

    def _add(self) -> None:
        self.count += 1
        self._any.set()

    def wait(self, seconds: float) -> bool:
        """Wait until somebody has asked; False if nobody has within this time."""
        return self._any.wait(seconds)


def run_reloading(
    arguments: Sequence[str],
    config: Config,
    *,
    name: str = "the worker",
    sockets: Sequence[int] = (),
    patience: float | None = None,
) -> int:
    """Run this command of ours, restart it at each change, and return the last exit code.

    `sockets`: open files that it inherits. `patience`: seconds after which a restart kills a process that
    does not end; its jobs are reclaimed by the next one.
    """
    configure_logs(config)
    command = [sys.executable, "-m", "penstock", *arguments]
    requests = _StopRequests()
    _log.info("%s restarts when a .py file below %s changes", name, Path.cwd())
    while True:
        watched = WatchedFiles(Path.cwd())
        # in its own process group: this process passes on Ctrl-C
        child = subprocess.Popen(  # noqa: S603 (the arguments of this process)
            command, start_new_session=True, pass_fds=sockets, env=os.environ | _NO_CACHE
        )
        changed = None
        while child.poll() is None and changed is None and not requests.wait(_EVERY):
            changed = watched.changed()
        passed = requests.count
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        code = _ended(child, requests, passed, patience if changed else None)
        if requests.count:
            _log.info("stopped (exit code %d)", code)
            return code
        if changed is None:  # it ended by itself, perhaps because the code is broken
            _log.info("%s ended with exit code %d: waiting for a change", name, code)
            while changed is None and not requests.wait(_EVERY):
                changed = watched.changed()
            if changed is None:
                return code
        _log.info("%s changed: %s restarts", changed, name)


def _ended(
    child: subprocess.Popen[bytes], requests: _StopRequests, passed: int, patience: float | None
) -> int:
    """Wait until the child has ended. Signals during its drain are passed on: the second stops it at once."""
    until = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return child.wait(0.1)
        except subprocess.TimeoutExpired:
            if requests.count > passed:
                child.send_signal(signal.SIGTERM)
                passed += 1
            if until is not None and time.monotonic() > until:
                _log.warning("process %d did not end in time and is killed", child.pid)
                child.kill()
                until = None


class WatchedFiles:
    """The .py files below a directory and its penstock.toml, with their modification times."""

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
                if file.endswith(".py") or file == _SETTINGS:
                    path = os.path.join(directory, file)
                    try:
                        found[path] = os.stat(path).st_mtime_ns
                    except OSError:  # removed after the listing
                        continue
        return found
