"""A web endpoint that answers 503 with Retry-After while its queue is full, and loses nothing it accepted.

Run it: `python examples/backpressure.py`. Sixteen customers send 200 imports by HTTP as fast as they can,
into a queue with room for 50. No worker runs at first, so the queue fills up; then a worker starts. A refused
customer tries again after the time in the answer. In the end each accepted import was done exactly once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from penstock import App, QueueFull, State

if __name__ == "__main__":  # the worker imports this file too, and finds the directory in the environment
    os.environ["IMPORTS_DIR"] = tempfile.mkdtemp(prefix="backpressure-")

HERE = Path(os.environ.get("IMPORTS_DIR", "."))
IMPORTS, CUSTOMERS, ROOM = 200, 16, 50

app = App(f"sqlite:///{HERE}/jobs.db", queue="imports")


@app.task
def load(number: int) -> None:
    time.sleep(0.01)  # the duration of an import
    with books() as db:
        db.execute("INSERT INTO done (number) VALUES (?)", [number])


@contextlib.contextmanager
def books() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(HERE / "books.db", timeout=30)) as db, db:
        yield db


# ── the web service ──────────────────────────────────────────────────────────────────────────────


class Imports(BaseHTTPRequestHandler):
    """POST / with {"number": 7}: answers 202 and the job's id, or 503 and the seconds to wait."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            handle = load.enqueue(order["number"])
        except QueueFull as full:
            self.answer(503, {"error": str(full)}, {"Retry-After": str(math.ceil(full.retry_after or 1))})
        else:
            self.answer(202, {"job": handle.id})

    def answer(self, status: int, body: dict[str, str], headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the answers are enough."""


class Server(ThreadingHTTPServer):
    # connections that wait to be accepted; with the default of 5 some would be refused
    request_queue_size = 128


@contextlib.contextmanager
def service() -> Iterator[int]:
    """Run the service in the block; yields its port."""
    with Server(("127.0.0.1", 0), Imports) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


# ── its customers ────────────────────────────────────────────────────────────────────────────────


class Crowd:
    """Customers that send one import after the other, each until it is accepted."""

    def __init__(self, port: int) -> None:
        self.accepted: list[int] = []
        self.sent_away: list[float] = []  # the waits (s) of the 503 answers
        self.somebody_was_sent_away = threading.Event()
        self._numbers = iter(range(IMPORTS))
        self._port = port
        self._threads = [threading.Thread(target=self._customer) for _ in range(CUSTOMERS)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join()

    def _customer(self) -> None:
        while (number := next(self._numbers, None)) is not None:
            while (wait := self._post(number)) is not None:
                self.sent_away.append(wait)
                self.somebody_was_sent_away.set()
                time.sleep(wait)
            self.accepted.append(number)

    def _post(self, number: int) -> float | None:
        """Send an import. None: it was accepted; otherwise the seconds until the next try."""
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with contextlib.closing(line):
            line.request("POST", "/", json.dumps({"number": number}))
            answer = line.getresponse()
            answer.read()
            assert answer.status in (202, 503), answer.status
            return float(answer.headers["Retry-After"]) if answer.status == 503 else None


# ── the story ────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    with books() as db:
        db.execute("CREATE TABLE done (number INTEGER NOT NULL)")
    app.queue("imports").settings(max_size=ROOM)
    with service() as port:
        crowd = Crowd(port)
        crowd.begin()
        assert crowd.somebody_was_sent_away.wait(60)
        (queue,) = app.store.sync.queues()
        assert queue.counts[State.AVAILABLE] == ROOM
        print(f"the queue is full: {ROOM} imports wait in it, and the next customer was sent away")
        with worker():
            crowd.end()
            assert app.drained("imports", timeout=60)
    report(crowd)


def report(crowd: Crowd) -> None:
    """Count the results and check them."""
    with books() as db:
        done = sorted(number for (number,) in db.execute("SELECT number FROM done"))
    assert sorted(crowd.accepted) == list(range(IMPORTS))
    print(
        f"customers: all {IMPORTS} imports were accepted in the end; sent away {len(crowd.sent_away)} times"
    )
    assert all(1 <= wait <= 60 for wait in crowd.sent_away)
    print("each time the answer said when to come again")
    assert done == sorted(crowd.accepted)
    print(f"worker: {len(done)} imports done, each once; nothing that was accepted is lost")


@contextlib.contextmanager
def worker() -> Iterator[None]:
    """Run `penstock worker backpressure:app --concurrency 4` in the block."""
    command = [sys.executable, "-m", "penstock", "worker", "backpressure:app", "--concurrency", "4"]
    with (HERE / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (HERE / "worker.log").read_text()
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(HERE)
