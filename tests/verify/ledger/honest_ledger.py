"""A correct ledger of some jobs in memory, and methods to falsify it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock import App, Discard, Retry, Snooze, current_job
from penstock.core.job import Ref, State
from penstock.stores.around import StoreAround, StorePlan, asked
from penstock.stores.contract import Request, Store
from penstock.verify.ledger import Ledger, Verdict, Violation, acheck
from penstock.worker.worker import Worker

Line = dict[str, Any]


class Account:
    """A ledger on disk, its store, and the ids of the jobs that were run, by what became of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ids: dict[str, str] = {}
        self.app = App("memory://")
        self.raw = self.app.store  # what is done here is not written down
        self.store = self.raw
        self.ledger = Ledger(directory)
        self.ledger.watch(self.app)
        self.work = _tasks(self.app)

    async def run(self) -> None:
        """Some jobs of each fate, run by a real worker."""
        for fate, delay in [("plain", 0), ("kept", 0), ("flaky", 0), ("sleepy", 0), ("hopeless", 0)]:
            self.ids[fate] = (await self.work[fate].using(delay=delay / 1000).aenqueue()).id
        self.ids["late"] = (await self.work["plain"].using(delay=0.03).aenqueue()).id
        off = await self.work["plain"].using(delay=0.5).aenqueue()
        await off.acancel()
        self.ids["cancelled"] = off.id
        await asyncio.wait_for(Worker(self.app, burst=True).run(), 60)

    async def verdict(self, **options: Any) -> Verdict:
        return await acheck(self.directory, self.store, **options)

    # ── falsifying ───────────────────────────────────────────────────────────────────────────────

    def facts(self, kind: str, fate: str) -> list[Line]:
        """The facts of one kind about the job of this fate, in order."""
        id = self.ids[fate]
        return sorted(
            (line for line in self.lines() if line["fact"] == kind and line.get("id") == id),
            key=lambda line: int(line["mono"]),
        )

    def lines(self) -> list[Line]:
        (path,) = self.directory.glob("*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def rewrite(self, change: Callable[[Line], Line | None]) -> None:
        """Every fact anew; None strikes it out."""
        (path,) = self.directory.glob("*.jsonl")
        changed = [change(dict(line)) for line in self.lines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in changed if line is not None))

    def change(self, kind: str, fate: str, nth: int = 0, **values: Any) -> None:
        """Other values for one fact."""
        wanted = self.facts(kind, fate)[nth]
        self.rewrite(lambda line: {**line, **values} if line == wanted else line)

    def strike(self, kind: str, fate: str) -> None:
        """All facts of this kind about this job never were."""
        id = self.ids[fate]
        self.rewrite(lambda line: None if line["fact"] == kind and line.get("id") == id else line)

    def add(self, *lines: Line) -> None:
        """Facts that nobody wrote."""
        (path,) = self.directory.glob("*.jsonl")
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def after_the_end(self, fate: str, **values: Any) -> Line:
        """A second start of this job, by another process, after everything else that it did."""
        first = self.facts("started", fate)[-1]
        mono = max(int(line["mono"]) for line in self.lines()) + 1_000_000
        again = {
            **first,
            "mono": mono,
            "at": first["at"] + 1_000,
            "pid": 77,
            "token": "again",
            "worker": "w2",
        }
        return {**again, "attempt": first["attempt"] + 1, **values}

    async def lose(self, fate: str) -> None:
        """The store forgets this job."""
        await self.raw.delete([Ref("default", self.ids[fate])])

    def pretend(self, verb: str, change: Callable[[Any], Any]) -> None:
        """The store answers this question otherwise."""
        self.store = _Liar(self.raw, verb, change)


class _Liar(StoreAround):
    def __init__(self, store: Store, verb: str, change: Callable[[Any], Any]) -> None:
        super().__init__(store)
        self._verb, self._change = verb, change

    def plan(self, request: Request[Any]) -> StorePlan[Any]:
        answer = yield from asked(request)
        return self._change(answer) if request.verb == self._verb else answer


def promises(findings: list[Violation]) -> set[str]:
    return {finding.promise for finding in findings}


def with_state(state: State, fate_id: str) -> Callable[[Any], Any]:
    """An answer of `get` in which this job is in another state."""

    def change(jobs: list[Any]) -> list[Any]:
        return [
            msgspec.structs.replace(job, state=state) if job is not None and job.id == fate_id else job
            for job in jobs
        ]

    return change


def _tasks(app: App) -> dict[str, Any]:
    @app.task
    async def plain() -> None:
        """Returns nothing, so the store keeps nothing."""

    @app.task
    async def kept() -> int:
        return 7

    @app.task(retry=0.05)
    def flaky() -> int:
        if current_job().attempt == 1:
            raise Retry("not yet")
        return 1

    @app.task
    async def sleepy() -> int:
        if not app.state.__dict__.setdefault("slept", False):
            app.state.slept = True
            raise Snooze(0.1)
        return 2

    @app.task(max_attempts=3)
    async def hopeless() -> None:
        raise Discard("no use")

    return {"plain": plain, "kept": kept, "flaky": flaky, "sleepy": sleepy, "hopeless": hopeless}
