"""One worker process under a supervisor: `python -m penstock.worker.process`.

It gets its orders as JSON in the environment, its lease table and a control socket as open files. Over
the socket it says hello, so that the supervisor, which never imports user code, knows the store; or why
it cannot work, for several children are one worker to whoever started it, and say so once.
When the socket closes its supervisor is dead: it drains.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys

import msgspec

from penstock.app.app import App
from penstock.app.loading import load_app
from penstock.config import Config
from penstock.core.errors import PenstockError, StoreError, StoreFull, StoreUnavailable
from penstock.worker.logs import complain, configure_logs
from penstock.worker.queues import Queue
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.signals import dump_stacks_on_request, ignore_interrupts, listen
from penstock.worker.worker import Worker

__all__ = [
    "AWAY",
    "ORDERS",
    "REFUSED",
    "REPLACE",
    "UNUSABLE",
    "ChildHello",
    "Death",
    "Orders",
    "Refusal",
    "Said",
]

ORDERS = "PENSTOCK_CHILD_ORDERS"
#: Exit code of a child that cannot work at all (no such module, bad option): no use in restarting it.
REFUSED = 78
#: Exit codes of a child that found its store unusable, or away for the moment, when it began.
UNUSABLE, AWAY = 74, 75
#: Exit code of a child that has drained because too many of its threads hang.
REPLACE = 79

_log = logging.getLogger("penstock.worker")

#: The garbage collector looks at new objects when there are so many more of them; Python's 700 are less
#: than one fetch brings. An app that sets thresholds of its own has its way.
_COLLECT_AFTER = (5_000, 10, 10)


class Death(msgspec.Struct):
    """The end of the worker whose place a child takes: who, how, how many jobs it held, and those (queue, id)
    that are dead by it. Of these there are few: it travels in the environment."""

    worker: str
    cause: str
    jobs: int
    dead: tuple[tuple[str, str], ...] = ()


class Orders(msgspec.Struct):
    """What the supervisor tells a child."""

    app: str
    config: Config
    queues: tuple[Queue, ...] | None
    burst: bool
    worker: str
    supervisor: int
    control: int
    table: int
    death: Death | None = None


class ChildHello(msgspec.Struct, tag=True):
    """A child listens to signals, and has this store. `tells`: its app has listeners or callbacks, which want
    to know of each death. Like all that it tells its supervisor, a line of JSON."""

    url: str | None
    namespace: str
    tells: bool = False


class Refusal(msgspec.Struct, tag=True):
    """A child ends, for it cannot work."""

    why: str


Said = ChildHello | Refusal


def main() -> int:
    """Work until told to stop; the exit code."""
    orders = msgspec.json.decode(os.environ.pop(ORDERS), type=Orders)
    ignore_interrupts()
    dump_stacks_on_request()
    configure_logs(orders.config)
    control = socket.socket(fileno=orders.control)
    try:
        gc.set_threshold(*_COLLECT_AFTER)
        app = load_app(orders.app)
        gc.collect()
        gc.freeze()  # what is there now stays: a full collection need not go through it
        runner = _runner()
        with runner:
            return runner.run(_serve(orders, app, control))
    except PenstockError as error:
        _refuse(control, orders.config, str(error))
        if isinstance(error, (StoreUnavailable, StoreFull)):
            return AWAY
        return UNUSABLE if isinstance(error, StoreError) else REFUSED


def _say(control: socket.socket, said: Said) -> None:
    control.sendall(msgspec.json.encode(said) + b"\n")


def _refuse(control: socket.socket, config: Config, why: str) -> None:
    control.setblocking(True)
    try:
        _say(control, Refusal(why))
    except OSError:  # nobody is there to say it for us
        complain(config, why)


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(orders: Orders, app: App, control: socket.socket) -> int:
    table = LeaseTable.attach(orders.table)
    config = orders.config
    worker = Worker(
        app,
        orders.queues,
        burst=orders.burst,
        strict=config.strict,
        config=config,
        table=table,
        id=orders.worker,
        supervisor=orders.supervisor,
    )
    listen(worker.stop, worker.quiet, drain=(signal.SIGTERM,))
    _say(
        control, ChildHello(app.connect_url, app.namespace, worker.tells)
    )  # from now on it may be sent signals
    _watch_supervisor(control, worker)
    if orders.death is not None:  # its supervisor has no listeners, for it has no app
        worker.report_lost_worker(orders.death.worker, orders.death.cause, orders.death.jobs)
        worker.adopt_callbacks(orders.death.dead)
    await worker.run()
    return REPLACE if worker.wants_replacement else 0


def _watch_supervisor(control: socket.socket, worker: Worker) -> None:
    """The supervisor never writes: readable means that it is gone."""
    loop = asyncio.get_running_loop()
    control.setblocking(False)

    def gone() -> None:
        loop.remove_reader(control)
        _log.warning("worker %s: its supervisor is gone; it drains", worker.id)
        worker.stop()

    loop.add_reader(control, gone)


if __name__ == "__main__":
    sys.exit(main())
