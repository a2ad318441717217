"""The adapter of Penstock on Redis and SQLite for the comparison harness, whose README defines adapters.

It runs in the harness as `peers/penstock_peer.py`, not here: `python -m benchmarks.peers` copies it. Its
worker is the command that users run, `penstock worker`, which imports `app` from this module.
"""

import math
import os
import sys
import tempfile
from datetime import UTC, datetime
from typing import ClassVar

from penstock import App

from . import common as c

SPEC = "peers.penstock_peer:app"


def make(opts, keep):
    """The app, with the five tasks of the harness by name."""
    if "durability" in opts:
        file = os.path.join(os.environ["BENCH_FILE_DIR"], "penstock.db")
        made = App(f"sqlite:///{file}?durability={opts['durability']}")
    else:
        made = App(c.REDIS_URL)
    functions = c.SYNC_TASKS if opts["kind"] == "thread" else c.ASYNC_TASKS
    # tuned: no results where the scenario needs none, as with the other libraries
    options = {} if keep else {"retention": 0}
    return made, {name: made.task(name=name, **options)(f) for name, f in functions.items()}


class Adapter(c.Base):
    dists = ("penstock", "msgspec", "uvloop", "redis", "hiredis")
    store = "redis"
    features = frozenset({"bulk", "delay", "result"})
    variants: ClassVar = {
        "penstock-redis": {"opts": {"kind": "async"}},
        "penstock-redis-threads": {"opts": {"kind": "thread"}},
        # as if each worker ran on its own host: only an expired lease shows that a worker is dead
        "penstock-redis-apart": {"opts": {"kind": "async", "apart": True}},
        "penstock-redis-threads-apart": {"opts": {"kind": "thread", "apart": True}},
        "penstock-sqlite": {"opts": {"durability": "full", "kind": "async"}, "store": "file"},
        "penstock-sqlite-normal": {"opts": {"durability": "normal", "kind": "async"}, "store": "file"},
        "penstock-sqlite-threads": {"opts": {"durability": "full", "kind": "thread"}, "store": "file"},
        "penstock-sqlite-normal-threads": {
            "opts": {"durability": "normal", "kind": "thread"},
            "store": "file",
        },
    }

    def open(self):
        keep = self.results or self.mode != "tuned"
        self.app, self.tasks = make(self.opts, keep)

    def close(self):
        self.app.close()

    def send(self, task, *args):
        return self.tasks[task].enqueue(*args)

    def send_bulk(self, task, argslist):
        job = self.tasks[task].job
        self.app.enqueue_many([job(*args) for args in argslist])

    def send_at(self, eta, task, *args):
        # rounded up to milliseconds: the harness measures from its eta, and no job may be early
        due = datetime.fromtimestamp(math.ceil(eta * 1000) / 1000, UTC)
        self.tasks[task].using(run_at=due).enqueue(*args)

    def call(self, task, *args):
        return self.tasks[task].enqueue(*args).result(timeout=30)

    def run_worker(self):
        command = [sys.executable, "-m", "penstock", "worker", SPEC]
        if self.mode == "tuned":
            command += ["--log-level", "warning"]
        if "conc" in self.opts:
            command += ["--concurrency", str(self.opts["conc"])]
        if self.opts.get("apart"):  # the directory of the liveness locks
            os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="alone-", dir=c.BENCH_DIR)
        os.execv(sys.executable, command)


if "BENCH_VARIANT" in os.environ:  # a measurement: `penstock worker` looks for the app here
    _adapter = Adapter(os.environ["BENCH_VARIANT"])
    _adapter.open()
    app = _adapter.app
