"""One worker process under a supervisor: `python -m penstock.worker.process`.

It is a fork of the supervisor or a new program. A new program receives its orders as JSON in the environment,
and in both cases its lease table and a control socket are open files.
Over the socket it sends `Hello` with the address of its store, because the supervisor never imports
user code, or `Refusal` with the reason why it cannot work; the supervisor reports the same reason only once
for several children. It receives the deaths of other children. When the socket closes, the supervisor is dead
and the process drains.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from penstock.core.text import print_anything
from penstock.worker.event_loop import loop_runner
from penstock.worker.logs import configure_logs, report_refusal
from penstock.worker.metrics_page import MetricsPage
from penstock.worker.orders import (
    ORDERS,
    REFUSED,
    REPLACE,
    UNREACHABLE,
    UNUSABLE,
    ChildHello,
    ChildMessage,
    ChildRequest,
    Death,
    Orders,
    Refusal,
)
from penstock.worker.setup import Supervision
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.signals import dump_stacks_on_request, ignore_interrupts, listen
from penstock.worker.worker import Worker

_log = logging.getLogger("penstock.worker")

#: Thresholds of the garbage collector: Python's 700 new objects are fewer than one fetch makes. An app may
#: set other thresholds when it is imported.
_COLLECT_AFTER = (5_000, 10, 10)
#: Most queues that a hello names, so that it is never longer than the supervisor reads.
_MOST_QUEUES = 1_000


def main() -> int:
    """Work as a new program; the orders are in the environment. Returns the exit code."""
    return _work(msgspec.json.decode(os.environ.pop(ORDERS), type=Orders))


def work_in_fork(orders: Orders) -> int:
    """Work in a fork of the supervisor, as a new program would: its main module is this one, and its stdin
    is empty. Returns the exit code."""
    sys.modules["__main__"] = sys.modules[__name__]
    sys.argv[:] = [__file__]
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    return _work(orders)


def _work(orders: Orders) -> int:
    """Work until stopped; returns the exit code."""
    ignore_interrupts()
    print_anything()
    dump_stacks_on_request()
    configure_logs(orders.config)
    control = socket.socket(fileno=orders.control)
    try:
        gc.set_threshold(*_COLLECT_AFTER)
        app = load_app(orders.app)
        gc.collect()
        gc.freeze()  # what is imported now stays: full collections skip it
        runner = loop_runner()
        with runner:
            return runner.run(_serve(orders, app, control))
    except PenstockError as error:
        _refuse(control, orders.config, str(error))
        if isinstance(error, (StoreUnavailable, StoreFull)):
            return UNREACHABLE
        return UNUSABLE if isinstance(error, StoreError) else REFUSED


def _send(control: socket.socket, message: ChildMessage) -> None:
    control.sendall(msgspec.json.encode(message) + b"\n")


def _ask(control: socket.socket, act: str) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone, which `_watch_supervisor` notices
        _send(control, ChildRequest(act))


def _refuse(control: socket.socket, config: Config, why: str) -> None:
    control.setblocking(True)
    try:
        _send(control, Refusal(why))
    except OSError:  # the supervisor is gone: report it here
        report_refusal(config, why)


async def _serve(orders: Orders, app: App, control: socket.socket) -> int:
    config = orders.config
    supervision = Supervision(
        pid=orders.supervisor,
        table=LeaseTable.attach(orders.table),
        metrics=None if orders.metrics is None else MetricsPage.attach(orders.metrics),
        ask=lambda act: _ask(control, act),
    )
    worker = Worker(
        app,
        orders.queues,
        burst=orders.burst,
        strict=config.strict,
        config=config,
        id=orders.worker,
        supervision=supervision,
    )
    listen(worker.stop, worker.quiet, drain=(signal.SIGTERM,))
    # from now on the supervisor may send signals
    with contextlib.suppress(OSError):  # the supervisor is gone, which `_watch_supervisor` notices
        queues = worker.info().queues[:_MOST_QUEUES]
        _send(control, ChildHello(app.connect_url, app.namespace, worker.has_listeners, queues))
    _watch_supervisor(control, worker)
    if orders.death is not None:
        _report(orders.death, worker)
    await worker.run()
    return REPLACE if worker.wants_replacement else 0


def _report(death: Death, worker: Worker) -> None:
    """Report the death of another child to listeners: the supervisor has no app, so it has none."""
    worker.report_lost_worker(death.worker, death.cause, death.jobs, death.dead)


def _watch_supervisor(control: socket.socket, worker: Worker) -> None:
    """Report deaths that the supervisor sends, and drain when the control socket closes: it is gone."""
    loop, rest = asyncio.get_running_loop(), b""
    control.setblocking(False)

    def read() -> None:
        nonlocal rest
        try:
            data = control.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            try:
                _report(msgspec.json.decode(line, type=Death), worker)
            except msgspec.DecodeError as error:  # a task may have read a part of it
                _log.warning("worker %s: a message of the supervisor cannot be read: %s", worker.id, error)
        if not data:
            loop.remove_reader(control)
            _log.warning("worker %s: the supervisor is gone; draining", worker.id)
            worker.stop()

    loop.add_reader(control, read)


if __name__ == "__main__":
    sys.exit(main())
