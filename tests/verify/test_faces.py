"""Command line, inspector, metrics, statistics of tasks and ledger show the same numbers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from penstock import App, Discard, Worker
from penstock.core.job import Ref, State
from penstock.verify.conductor import command_line_numbers
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.check import Snapshot, snapshot, verdict_on
from penstock.verify.ledger.history import History, read
from penstock.verify.ledger.rules.counters import counted


async def _worked(app: App, folder: Path) -> tuple[History, Snapshot]:
    """The ledger and the store after jobs of every end, without a fault."""
    ledger = Ledger(folder)
    ledger.watch(app)

    @app.task(queue="a", retention="1h", max_attempts=2, retry=0)
    async def work(n: int) -> int:
        if n % 4 == 1:
            raise Discard("on purpose")
        if n % 4 == 2:
            raise ValueError("on purpose")
        return n

    @app.task(queue="b")
    def note(n: int) -> None: ...

    await app.aenqueue_many([work.job(n) for n in range(12)] + [note.job(n) for n in range(5)])
    off = await note.using(delay=60).aenqueue(1)
    await off.acancel()
    await Worker(app, burst=True).run()
    history = read(folder)
    return history, await snapshot(app.store, history)


def test_all_faces_show_what_the_ledger_says(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", namespace="shop")
    history, seen = asyncio.run(_worked(app, tmp_path / "ledger"))
    app.close()
    verdict = verdict_on(history, seen).require()  # the store, the metrics and the inspector agree with it
    numbers = counted(seen.queues, seen.stats)
    there = {what: n for what, n in numbers.items() if n}
    assert command_line_numbers(app.url, app.namespace) == there
    assert (verdict.enqueued, verdict.completed, verdict.dead, verdict.cancelled) == (18, 11, 6, 1)
    assert there["a", "enqueued"] + there["b", "enqueued"] == verdict.enqueued
    assert (there["a", State.COMPLETED], there["a", State.DEAD]) == (6, verdict.dead)
    assert there["a", "processed"] + there["b", "processed"] == verdict.runs
    by_task: Counter[tuple[str, str]] = Counter()
    for row in seen.tasks:
        by_task[row.queue, "processed"] += row.stats.processed
        by_task[row.queue, "failed"] += row.stats.failed
    assert +by_task == {what: n for what, n in there.items() if what in by_task}
    assert sum(row.stats.dead for row in seen.tasks) == verdict.dead
    assert sum(row.stats.retried for row in seen.tasks) == verdict.retried
    assert set(seen.jobs) >= {Ref("a", story.ref.id) for story in history.stories if story.ref.queue == "a"}
