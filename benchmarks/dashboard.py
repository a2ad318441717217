"""The dashboard on a large store, and what open dashboards cost the workers.

    python -m benchmarks.search    fill    sqlite:////tmp/million.db
    python -m benchmarks.dashboard history sqlite:////tmp/million.db
    python -m benchmarks.dashboard pages   sqlite:////tmp/million.db
    python -m benchmarks.dashboard reads   sqlite:////tmp/million.db
    python -m benchmarks.dashboard workers sqlite:////tmp/fresh.db --pairs 12
    python -m benchmarks.dashboard flow    sqlite:////tmp/fresh.db

`history` adds statistics of 24 hours with 1 000 kinds of errors, workers and periodic entries. `pages`
follows links until it knows an address of each page of the table, and measures each without the answers that
pages share. `reads` opens ten dashboards that refresh themselves while queues change, and counts the verbs of
the store that are called. `workers` measures a worker with and without ten open dashboards, which
`penstock serve` serves, in pairs: its rate, and the CPU of the worker, the dashboard's process and Redis
together, which can be measured on a busy machine, too. `flow` enqueues a group of 10 000 members, lets half
of them complete, and measures its pages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from html import unescape
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.compare import interval
from benchmarks.machine import cpu_seconds
from benchmarks.search import KINDS, QUEUES
from penstock import App, Worker
from penstock.core.clock import ManualClock
from penstock.core.job import NewJob
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.task_stats import TaskStats
from penstock.stores.connect import connect
from penstock.stores.contract import ErrorCount, StatsReport, Store, TaskCount, WorkerInfo
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
    parser.add_argument("url")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of runs of `workers` (default 12)")
    parser.add_argument(
        "--jobs", type=int, default=60_000, help="jobs of a run of `workers` (default 60 000)"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="time of `reads` (default 15)")
    given = parser.parse_args(arguments)
    if given.act == "history":
        asyncio.run(_add_history(given.url))
    elif given.act == "workers":
        _measure_workers(given.url, given.pairs, given.jobs)
    elif given.act == "flow":
        asyncio.run(_measure_flow(given.url))
    else:
        store = connect(given.url)
        try:
            asyncio.run(_measure_pages(store) if given.act == "pages" else _count_reads(store, given.seconds))
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
        for name in _verbs(store):
            setattr(store, name, self._counted(name, getattr(store, name)))
        self.dashboard = Dashboard(store, open_to_all=True, hosts=())

    def _counted(self, name: str, verb: Any) -> Any:
        async def call(*given: Any, **named: Any) -> Any:
            self.verbs[name] += 1
            return await verb(*given, **named)

        return call

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


def _verbs(store: Store) -> list[str]:
    found = [name for name in dir(store) if not name.startswith("_")]
    return [name for name in found if asyncio.iscoroutinefunction(getattr(store, name, None))]


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


def _measure_workers(url: str, pairs: int, jobs: int) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--url", url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(re.findall(r'"port":\s*(\d+)', server.stdout.readline())[0])
            asyncio.run(_pairs(url, server.pid, port, pairs, jobs))
        finally:
            server.terminate()


async def _pairs(url: str, server: int, port: int, pairs: int, jobs: int) -> None:
    app, dice = App(url), random.Random(7)

    @app.task(name="noop", queue="bench")
    async def noop(n: int) -> None: ...

    everybody = [os.getpid(), server, *_redis_of(url)]
    await _drain(app, noop, jobs // 4, everybody)
    rates: list[float] = []
    costs: list[float] = []
    shares: list[float] = []
    for n in range(pairs):
        found: dict[bool, Drained] = {}
        for opened in dice.sample([False, True], 2):
            with _browsers(port) if opened else contextlib.nullcontext():
                found[opened] = await _drain(app, noop, jobs, everybody)
        closed, opened_run = found[False], found[True]
        rates.append(closed.seconds / opened_run.seconds)
        costs.append(sum(opened_run.cpu) / sum(closed.cpu))
        shares.append(opened_run.cpu[1] / sum(opened_run.cpu))
        print(f"pair {n + 1}: {closed.said(jobs)}; with dashboards {opened_run.said(jobs)}", flush=True)
    for what, ratios in (
        ("rate, as a ratio", rates),
        ("CPU of worker, dashboard and Redis, as a ratio", costs),
        ("share of the dashboard in this CPU", shares),
    ):
        low, middle, high = interval(ratios)
        print(f"{what}: {middle:.3f}, 95 % interval {low:.3f} to {high:.3f}, {pairs} pairs")
    app.store.close()


def _redis_of(url: str) -> list[int]:
    """The process of a Redis server on this host, whose CPU counts as well."""
    if not url.startswith("redis:"):
        return []
    import redis

    with redis.Redis.from_url(url) as client:
        facts: Any = client.info("server")
        return [int(facts["process_id"])]


class Drained(NamedTuple):
    """A run: its seconds, and the CPU seconds of each process."""

    seconds: float
    cpu: list[float]

    def said(self, jobs: int) -> str:
        """Its rate and its CPU as text."""
        return f"{jobs / self.seconds:,.0f} jobs/s, {sum(self.cpu) / jobs * 1e6:.1f} µs of CPU a job"


async def _drain(app: App, task: Any, jobs: int, pids: Sequence[int]) -> Drained:
    for n in range(0, jobs, 2_000):
        await app.aenqueue_many([task.job(k) for k in range(n, min(n + 2_000, jobs))])
    began, used = time.perf_counter(), [cpu_seconds([pid]) for pid in pids]
    await Worker(app, concurrency=100, burst=True).run()
    spent = [cpu_seconds([pid]) - before for pid, before in zip(pids, used, strict=True)]
    return Drained(time.perf_counter() - began, spent)


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
