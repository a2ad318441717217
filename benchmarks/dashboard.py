"""The dashboard on a large store, and what open dashboards cost the workers.

    python -m benchmarks.search    fill    sqlite:////tmp/million.db
    python -m benchmarks.dashboard history sqlite:////tmp/million.db
    python -m benchmarks.dashboard pages   sqlite:////tmp/million.db
    python -m benchmarks.dashboard reads   sqlite:////tmp/million.db
    python -m benchmarks.dashboard workers sqlite --pairs 12
    python -m benchmarks.dashboard flow    sqlite:////tmp/fresh.db

`history` adds statistics of 24 hours with 1 000 kinds of errors, workers and periodic entries. `pages`
follows links until it knows an address of each page of the table, and measures each without the answers that
pages share. `reads` opens ten dashboards that refresh themselves while queues change, and counts the verbs of
the store that are called. `workers` measures a worker that drains a fresh store, with and without ten open
dashboards, which `penstock serve` serves (see `drain_windows`): its rate, and the CPU of the worker, the
dashboard's process and Redis together. `flow` enqueues a group of 10 000 members, lets half of them complete,
and measures its pages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from html import unescape
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.drain_windows import ALONE, BESIDE, DrainWindows
from benchmarks.machine import cpu_seconds
from benchmarks.rig import Rig, Running, Setup, new_runner
from benchmarks.search import KINDS, QUEUES
from penstock import App, Worker
from penstock.core.clock import ManualClock
from penstock.core.job import NewJob
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.stats import TaskStats
from penstock.stores.connect import connect
from penstock.stores.contract import ErrorCount, Request, StatsReport, Store, TaskCount, WorkerInfo
from penstock.web.dashboard import Dashboard
from penstock.web.dashboard.pages import PAGES
from penstock.workflows import chord

__all__ = ["main"]

_OPEN = 10
_ASKED = 30
_MOST_LINKS = 12
#: Members of the group of `flow`.
_MEMBERS = 10_000
#: Seconds before reads are counted: all dashboards are open then.
_WARM = 2.0
#: Addresses of the list of jobs that links do not lead to.
_LISTS = (
    "/jobs?order=oldest",
    "/jobs?state=dead&order=ended",
    "/jobs?order=due",
    "/jobs?task=tasks.t7",
    "/jobs?text=order-0043210",
    "/jobs?text=nobody+has+this",
    "/jobs?text=host+777+gave&state=dead",
    "/jobs?header=tenant%3Dnone",
    "/search?q=order-0043210",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("act", choices=["history", "pages", "reads", "workers", "flow"])
    parser.add_argument("url", help="the store; for `workers` sqlite or redis, a fresh one")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of windows of `workers` (default 12)")
    parser.add_argument(
        "--seconds", type=float, help="time of `reads` (default 15), or of a window of `workers` (default 3)"
    )
    given = parser.parse_args(arguments)
    if given.act == "history":
        asyncio.run(_add_history(given.url))
    elif given.act == "workers":
        _measure_workers(given.url, given.pairs, given.seconds or 3.0)
    elif given.act == "flow":
        asyncio.run(_measure_flow(given.url))
    else:
        store = connect(given.url)
        try:
            asyncio.run(
                _measure_pages(store) if given.act == "pages" else _count_reads(store, given.seconds or 15.0)
            )
        finally:
            store.close()


# ── history ──────────────────────────────────────────────────────────────────────────────────────


async def _add_history(url: str) -> None:
    clock = ManualClock(now=int(time.time() * 1000) - 86_400_000)
    store = connect(url, clock=clock)
    for number, minutes in enumerate([60] * 23 + [1] * 60, 1):
        clock.advance(minutes * 60_000)
        await store.add_stats([_report(queue, number, number == 83) for queue in QUEUES])
    for n in range(20):
        tasks = tuple(f"tasks.t{k}" for k in range(20))
        worker = WorkerInfo(f"w{n}", f"host{n}", n, clock.now() - 60_000, QUEUES, tasks, 20, n, seen_at=0)
        await store.announce(worker)
    entries = [
        NewEntry(f"entry-{n}", NewJob("x", f"tasks.t{n % 20}", queue=QUEUES[n % 5]), Schedule("0 4 * * *"))
        for n in range(200)
    ]
    await store.put_entries(entries)
    store.close()


def _report(queue: str, number: int, with_errors: bool) -> StatsReport:
    sketch = [random.randrange(50) for _ in range(12)]
    stats = TaskStats(60, 60, 3, 2, 1, 6_000_000, 9_000_000, sketch, sketch)
    tasks = [TaskCount(f"tasks.t{n}", stats) for n in range(20)]
    errors = [
        ErrorCount(f"g{n}", f"tasks.t{n % 20}", f"Error{n % 50}", f"the host {n} gave no answer", 100, "none")
        for n in range(KINDS)
    ]
    return StatsReport(queue, "bench", number, tasks, errors if with_errors else [])


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


class Asked:
    """A dashboard in this process, its answers, and the verbs that it calls."""

    def __init__(self, store: Store) -> None:
        self.verbs: Counter[str] = Counter()
        ask = store.ask

        async def counted(request: Request[Any]) -> Any:
            self.verbs[request.verb] += 1
            return await ask(request)

        store.ask = counted  # type: ignore[method-assign]
        self.dashboard = Dashboard(store, open_to_all=True, hosts=())

    async def get(self, path: str, *, live: bool = False) -> tuple[int, str, str]:
        """The status, the address that is led to, and the page."""
        path, _, query = path.partition("?")
        headers = [(b"host", b"localhost")] + ([(b"x-penstock-live", b"1")] if live else [])
        scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode()}
        scope |= {"headers": headers, "scheme": "http", "http_version": "1.1", "root_path": ""}
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.dashboard(scope, receive, send)
        led = next((value.decode() for name, value in sent[0]["headers"] if name == b"location"), "")
        return sent[0]["status"], led, b"".join(one.get("body", b"") for one in sent[1:]).decode()


async def _measure_pages(store: Store) -> None:
    asked = Asked(store)
    addresses = await _addresses(asked)
    await _measure(asked, [*addresses, *_LISTS])


async def _measure(asked: Asked, paths: Sequence[str]) -> None:
    print(f"{asked.dashboard.url}: {len(paths)} addresses, {_ASKED} requests each", flush=True)
    worst = 0.0
    for path in paths:
        times, before = [], asked.verbs.total()
        for _ in range(_ASKED):
            asked.dashboard._shared.reads.clear()
            began = time.perf_counter()
            status, _, text = await asked.get(path)
            times.append((time.perf_counter() - began) * 1000)
        verbs = (asked.verbs.total() - before) / _ASKED
        p95 = quantiles(times, n=20)[-1]
        worst = max(worst, p95)
        print(
            f"{path[:60]:60} {status} p50 {median(times):6.1f} ms, p95 {p95:6.1f} ms; "
            f"{verbs:4.1f} verbs, {len(text) / 1000:5.0f} KB",
            flush=True,
        )
    print(f"worst p95: {worst:.1f} ms")


async def _measure_flow(url: str) -> None:
    """A group of 10 000 members, half of which have completed, and its body."""
    app = App(url)

    @app.task(queue="bench-flow")
    async def member(n: int) -> int:
        return n

    @app.task(queue="bench-flow")
    async def body(numbers: list[int]) -> int:
        return len(numbers)

    later = member.using(delay="1d")
    jobs = [(member if n % 2 else later).job(n) for n in range(_MEMBERS)]
    await chord(jobs, then=body).aenqueue(id=f"bench-{time.time_ns()}", name="bench")
    await Worker(app, concurrency=100, burst=True).run()
    asked = Asked(app.store)
    _, _, text = await asked.get("/flows")
    flow = re.findall(r'href="(/flows/bench-flow/[^"?#]+)"', text)[0]
    parts = [f"{flow}?first={n}" for n in (_MEMBERS // 2, _MEMBERS - 100)]
    await _measure(asked, ["/flows", "/flows?state=failed", flow, f"{flow}?open=5", *parts, "/batches"])
    app.close()


async def _addresses(asked: Asked) -> list[str]:
    """One address of each page, found by links from those that need no name."""
    patterns = {page.name: re.compile(re.sub(r"\\\{.*?\}", "[^/?]+", re.escape(page.path))) for page in PAGES}
    found = {page.name: page.path for page in PAGES if "{" not in page.path}
    left, seen = ["/jobs?state=dead", *found.values()], set(found.values())
    while left and len(found) < len(PAGES):
        _, _, text = await asked.get(left.pop(0))
        links = [unescape(one) for one in re.findall(r'href="([^"#]+)"', text)]
        for name, pattern in patterns.items():
            fitting = [link for link in links if pattern.fullmatch(link.partition("?")[0])]
            if fitting and name not in found:
                found[name] = fitting[0]
            left += [one for one in fitting[:_MOST_LINKS] if one not in seen and len(seen) < 200]
            seen.update(fitting[:_MOST_LINKS])
    for name in patterns.keys() - found.keys():
        print(f"no link leads to {name}")
    return list(found.values())


# ── reads ────────────────────────────────────────────────────────────────────────────────────────


async def _count_reads(store: Store, seconds: float) -> None:
    """Ten browsers with different pages, over a queue that changes all the time."""
    asked = Asked(store)
    addresses = await _addresses(asked)
    chosen = [addresses[n % len(addresses)] for n in range(_OPEN)]
    browsers = [asyncio.create_task(_browse(asked, path)) for path in chosen]
    await asyncio.sleep(_WARM)
    asked.verbs.clear()
    began, written = time.monotonic(), 0
    other = connect(store.url)
    while time.monotonic() - began < seconds:
        await other.enqueue([NewJob(f"bench-{time.time_ns()}", "noop", queue="bench-reads")])
        written += 1
        await asyncio.sleep(0.1)
    rate = asked.verbs.total() / (time.monotonic() - began)
    for browser in browsers:
        browser.cancel()
    await asyncio.gather(*browsers, return_exceptions=True)
    await other.drop("bench-reads")
    other.close()
    print(f"{_OPEN} dashboards, {written} changes: {rate:.2f} verbs/s; {dict(asked.verbs)}")


async def _browse(asked: Asked, path: str) -> None:
    """Refresh the page at each event, as its script does."""
    pulse = asked.dashboard._shared.pulse
    await asked.get(path)
    with pulse.followed():
        while True:
            snapshot = await pulse.next(15.0)
            if snapshot is not None and snapshot.changed:
                await asked.get(path, live=True)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


def _measure_workers(store: str, pairs: int, seconds: float) -> None:
    setup = Setup(store, "full" if store == "sqlite" else "")
    with Rig(setup, Path(tempfile.gettempdir())) as rig, new_runner() as runner:
        command = [sys.executable, "-m", "penstock", "serve", "--url", rig.url, "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(re.findall(r'"port":\s*(\d+)', server.stdout.readline())[0])
                runner.run(_BesideDashboards(rig, seconds, server.pid, port).measure(pairs))
            finally:
                server.terminate()


class _BesideDashboards(DrainWindows):
    """Windows beside ten open dashboards of the process `server`."""

    def __init__(self, rig: Rig, seconds: float, server: int, port: int) -> None:
        super().__init__(rig, seconds)
        self._server, self._port = server, port
        self._of_server: dict[str, list[float]] = {ALONE: [], BESIDE: []}
        self._before = 0.0

    async def measure(self, pairs: int) -> None:
        with self.rig.workers() as worker:
            await self.pairs(pairs, worker, self._open)
        print(f"{self.rig.setup.name}, {pairs} pairs")
        low = self.report(f"{_OPEN} dashboards")
        print(f"the rate falls by up to {max(0.0, 1 - low):.1%}")
        used = median(self._of_server[BESIDE]) / self.seconds
        print(f"the dashboard's process used {used:.1%} of a core beside {_OPEN} dashboards")

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncGenerator[None]:
        with _browsers(self._port):
            await asyncio.sleep(_WARM)
            yield

    def used(self, worker: Running) -> float:
        return super().used(worker) + cpu_seconds([self._server])

    def window_begins(self, where: str) -> None:
        self._before = cpu_seconds([self._server])

    def window_ends(self, where: str) -> None:
        self._of_server[where].append(cpu_seconds([self._server]) - self._before)


@contextlib.contextmanager
def _browsers(port: int) -> Iterator[None]:
    """Ten clients in a process of their own, until the block ends; all have their stream when it begins."""
    command = [sys.executable, "-m", "benchmarks.dashboard_clients", str(port), str(_OPEN)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clients:
        try:
            assert clients.stdout is not None
            clients.stdout.readline()
            yield
        finally:
            clients.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
