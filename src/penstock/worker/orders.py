"""What a supervisor and its worker processes send each other, and the exit codes of a worker process.

A module of its own, so that a supervisor does not import what only a worker process needs.
"""

from __future__ import annotations

import msgspec

from penstock.config import Config
from penstock.worker.queues import Queue

ORDERS = "PENSTOCK_CHILD_ORDERS"
#: Exit code of a child that can never work (no such module, bad option): it is not restarted.
REFUSED = 78
#: Exit codes of a child that found its store unusable, or unreachable for now, when it started.
UNUSABLE, UNREACHABLE = 74, 75
#: Exit code of a child that has drained because too many of its threads are stuck.
REPLACE = 79


class Death(msgspec.Struct):
    """The end of another worker: its id, the cause, how many jobs it held, and the jobs (queue, id) that are
    dead because of it. The list is short: it is passed in the environment of the child that replaces it.

    The death of a worker that was replaced before is sent to a child over its socket, as a line of JSON.
    """

    worker: str
    cause: str
    jobs: int
    dead: tuple[tuple[str, str], ...] = ()


class Orders(msgspec.Struct):
    """The supervisor's orders to a child, passed at its start."""

    app: str
    config: Config
    queues: tuple[Queue, ...] | None
    burst: bool
    worker: str
    supervisor: int
    control: int
    table: int
    death: Death | None = None
    #: The file of its metrics page; None: nothing is counted.
    metrics: int | None = None


class ChildHello(msgspec.Struct, tag=True):
    """Sent by a child that is ready for signals, with the address of its store.

    `has_listeners`: its app has listeners or callbacks, which need to know of each death. `queues`: those it
    serves, for a supervisor that gives its jobs back; the first 1 000. Messages of a child are lines of JSON.
    """

    url: str | None
    namespace: str
    has_listeners: bool = False
    queues: tuple[str, ...] = ()


class Refusal(msgspec.Struct, tag=True):
    """Sent by a child that ends because it cannot work."""

    why: str


class ChildRequest(msgspec.Struct, tag=True):
    """Sent by a child that was told to quiet, drain, stop or restart (`stores/worker_commands.py`).

    The first three are for all children of the supervisor, `restart` is for the child alone. `serves`: the
    child has started, and takes jobs.
    """

    act: str


ChildMessage = ChildHello | Refusal | ChildRequest
