"""The demo's tasks (async, thread and process); its workers are `penstock worker penstock.demo.tasks:app`.

Environment variables name the store, so that producer and workers use the same one.
"""

from __future__ import annotations

import os

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.retry import fixed
from penstock.demo.demo_folder import LEDGER, NAMESPACE, URL
from penstock.demo.survey import Survey, Totals, fingerprint, survey, total
from penstock.verify.ledger import Ledger

__all__ = ["Unlucky", "app", "hash_file", "parse_file", "sum_directory"]

app = App(
    os.environ.get(URL, "memory://"),
    namespace=os.environ.get(NAMESPACE, ""),
    name="demo",
    retry=fixed("200ms"),
    retention="1d",  # keep the jobs for a look afterwards
)
if LEDGER in os.environ:
    Ledger(os.environ[LEDGER]).watch(app)


class Unlucky(Exception):
    """Raised by unlucky jobs in their first attempt."""


@app.task(queue="parse", run_in="process")
def parse_file(path: str, unlucky: bool = False) -> Survey:
    """Parse one file: CPU work, in a process that can be killed."""
    _stumble(unlucky)
    return survey(path)


@app.task(queue="read")
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
