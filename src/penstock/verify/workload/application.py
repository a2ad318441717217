"""The app of a run and its ledger, for producers and workers. Environment variables name the store."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.app.app import App
from penstock.core.retry import fixed
from penstock.stores.contract import Capability
from penstock.verify.ledger import Ledger
from penstock.verify.run_folder import LEDGER, NAMESPACE, OWNER, ROLE, URL
from penstock.verify.servers import disks

disks.track_syncs()
#: How often a worker looks whether it gets to run (s), and how much later it must wake up to be stalled (s).
_LOOK, _STALL = 0.2, 0.2

app = App(
    os.environ.get(URL, "memory://"),
    namespace=os.environ.get(NAMESPACE, ""),
    name="verify",
    queue="main",
    max_attempts=50,  # a job that does its work must be completed, despite all faults
    retry=fixed("300ms"),
    timeout="20s",
    retention="10m",
)
ledger = Ledger(os.environ.get(LEDGER, os.devnull))
if LEDGER in os.environ:
    ledger.watch(app, attempts=False)


@app.on_startup
def end_with_conductor() -> None:
    """Watch the conductor, so that a killed run leaves no worker behind; and record when no thread runs."""
    if OWNER in os.environ:
        threading.Thread(target=_watch, args=(int(os.environ[OWNER]),), daemon=True).start()


def _watch(owner: int) -> None:
    looked = time.monotonic()
    while _lives(owner):
        time.sleep(_LOOK)
        looked, before = time.monotonic(), looked  # from look to look: no moment goes unmeasured
        late = looked - before - _LOOK
        if late > _STALL and LEDGER in os.environ:
            ledger.stalled(late)
    if os.environ.get(ROLE) == "supervised":
        with contextlib.suppress(ProcessLookupError):
            os.kill(os.getppid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def can(*needs: Capability) -> bool:
    """Whether the store has these capabilities; the load leaves out what needs others."""
    return all(map(app.store.can, needs))


def task_if(need: Capability, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `app.task`; a function that the store cannot serve stays a function, and is no task."""
    return app.task(**options) if can(need) else lambda function: function


class PlannedFailure(Exception):
    """Raised by tasks that fail on purpose."""
