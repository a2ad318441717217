"""The demo's tasks (async, thread and process); its workers are `penstock worker penstock.demo.tasks:app`.

Environment variables name the store, so that producer and workers use the same one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.retry import fixed
from penstock.demo.demo_folder import CHILDREN, LEDGER, NAMESPACE, URL, ChildFile
from penstock.demo.survey import Survey, Totals, fingerprint, survey, total

if TYPE_CHECKING:  # without a ledger, its import is not worth 45 ms of each process
    from penstock.verify.ledger import Ledger

P = ParamSpec("P")
R = TypeVar("R")

app = App(
    os.environ.get(URL, "memory://"),
    namespace=os.environ.get(NAMESPACE, ""),
    name="demo",
    retry=fixed("200ms"),
    retention="1d",  # keep the jobs for a look afterwards
)
_ledger: Ledger | None = None
if LEDGER in os.environ:
    from penstock.verify.ledger import Ledger

    _ledger = Ledger(os.environ[LEDGER])
    _ledger.watch(app, attempts=False)


class Unlucky(Exception):
    """Raised by unlucky jobs in their first attempt."""


def _recorded(function: Callable[P, R]) -> Callable[P, R]:
    return function if _ledger is None else _ledger.recorded(function)


@app.task(queue="parse", run_in="process")
@_recorded
def parse_file(path: str, unlucky: bool = False) -> Survey:
    """Parse one file: CPU work, in a process that can be killed."""
    with _this_child().works_on(path):
        _stumble(unlucky)
        return survey(path)


@app.task(queue="read")
@_recorded
def hash_file(path: str, unlucky: bool = False) -> str:
    """Hash one file: disk I/O, in a thread."""
    _stumble(unlucky)
    return fingerprint(path)


@app.task(queue="sum")
async def sum_directory(ids: list[str], unlucky: bool = False) -> Totals:
    """Sum up the results of the parse jobs of one directory: waits for the store, in the event loop."""
    _stumble(unlucky)
    handles = [app.handle(id, task=parse_file) for id in ids]
    return total([await handle.aresult(timeout="10s") for handle in handles])


def _stumble(unlucky: bool) -> None:
    if unlucky and current_job().attempt == 1:
        raise Unlucky("an unlucky job fails in its first attempt")


@functools.cache
def _this_child() -> ChildFile:
    return ChildFile(Path(os.environ[CHILDREN]))


if _ledger is not None:
    _ledger.watch_attempts(app)
