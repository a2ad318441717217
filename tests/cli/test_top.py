"""`penstock top` in a real terminal, and its finer cases without one."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("textual")

from textual.pilot import Pilot

from penstock.cli.top.app import Top
from penstock.cli.top.dialogs import HELP
from penstock.cli.top.panes import Rates, totals
from penstock.core.job import AttemptError, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.stats import TaskStats
from penstock.errors import StoreUnavailable
from penstock.inspector import Inspector, Overview
from penstock.inspector.audit import AuditLog
from penstock.inspector.queue_views import queue_view
from penstock.stores.connect import connect
from penstock.stores.contract import (
    ErrorCount,
    QueueInfo,
    QueueStats,
    Settlement,
    Share,
    StatsReport,
    Store,
    TaskCount,
    WorkerInfo,
)
from penstock.stores.memory import MemoryStore
from tests.cli.conftest import Cli, announce, fetch, kill, put
from tests.servers.single import redis_server
from tests.terminal import terminal

WORKER = WorkerInfo("w1", "box", 7, 0, ("mail",), ("t",), 4, memory=50_000_000, version="0.1.0")


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_it_fits_a_small_and_a_large_terminal_and_obeys_keys(store: Store, tmp_path, monkeypatch) -> None:
    put(store, "a", "b", "c", queue="mail")
    put(store, "x", queue="reports")
    announce(store, replace(WORKER, id="w2"))
    kill(store, queue="mail")
    fetch(store, queue="mail", worker="w2")
    with terminal(tmp_path, "--url", store.url, "top", "-i", "0.2") as shown:
        lines = shown.shows("1 Queues", "0.0/s", "reports")
        assert len(lines) == 25  # the last is empty: the end of the output
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith(" penstock top  sqlite://")
        assert "every 0.2 s" in lines[0]
        assert lines[1].startswith(" ready 2  running 1/4  later 0  dead 1  in 0.0/s")
        assert lines[2].startswith("[1 Queues]   2 Workers    3 Running    4 Dead    5 Errors   by QUEUE ▲")
        assert lines[3].split()[:5] == ["QUEUE", "READY", "RUN", "LATER", "DEAD"]
        assert lines[4].split()[:5] == ["mail", "1", "1", "-", "1"]
        assert lines[5].split()[0] == "reports"
        assert lines[5].endswith("no worker")
        assert lines[23] == " p pause  s sort  o order  / filter  Enter details  ? help  q quit"

        shown.press("p")
        shown.shows("pause the queue mail?", "y  yes")
        shown.press("y")
        shown.shows("mail: paused")
        assert store.sync.queues()[0].paused

        shown.resize(200, 50)
        every = ("1 Queues", "2 Workers", "3 Running", "4 Dead", "5 Errors")
        lines = shown.shows(*every, "box:7", "boom", "WAIT95")
        assert len(lines) == 51
        assert lines[2].startswith("╭─ 1 Queues by QUEUE ▲ ")
        assert len(lines[2]) == 200
        assert "WAIT95" in lines[3]
        (workers,) = [line for line in lines if "2 Workers" in line]
        assert "3 Running" in workers
        (dead,) = [line for line in lines if "4 Dead" in line]
        assert "5 Errors" in dead

        shown.press("q")
        shown.shows("ended 0")


@pytest.mark.server
@pytest.mark.slow
def test_its_redis_may_be_killed_and_sigterm_restores_the_terminal(tmp_path) -> None:
    with redis_server() as server, terminal(tmp_path, "--url", server.url, "top", "-i", "0.2") as shown:
        store = connect(server.url)
        put(store, "a", queue="mail")
        store.close()
        shown.shows("mail", "0.0/s")
        server.kill()
        shown.shows("the store does not answer for", "mail")
        server.launch()
        shown.shows("the store answers again")
        assert shown.modes() == ["1", "0"]
        os.kill(shown.pid(), signal.SIGTERM)
        shown.shows("ended 0")
        assert shown.modes() == ["0", "1"]


def run(store: Store, drive: Any, **options: Any) -> Top:
    """Drive a `Top` by its keys; each read follows a key at once."""

    async def running() -> Top:
        top = Top(store, place="here", interval=60, **options)
        async with top.run_test() as pilot:
            await reads(pilot)
            await drive(pilot)
        return top

    return asyncio.run(running())


async def reads(pilot: Pilot[None]) -> None:
    """Let it read once more."""
    await pilot.press("space")
    await pilot.pause()
    await pilot.pause(0.1)


def text(pilot: Pilot[None]) -> str:
    """What the screen shows."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(part.text for part in strip) for strip in strips)


@pytest.fixture
def memory() -> MemoryStore:
    made = MemoryStore()
    asyncio.run(fill(made))
    return made


async def fill(store: Store) -> None:
    """A running job `j0`, two dead ones, and ready ones."""
    await store.announce(WORKER)
    await store.enqueue([NewJob(f"j{n}", f"t{n % 2}", queue="mail") for n in range(5)])
    fetched = await store.fetch([Share("mail", 3, 3)], limit=3, lease=60_000, worker="w1", token="x")
    error = AttemptError(1, 1_700_000_000_000, "ValueError", "boom [red]now[/red]\x1b[2J", "Traceback: here")
    end = Transition(State.DEAD, keep=10**9, error=error, reason="ValueError")
    await store.settle([Settlement(job.lease, end) for job in fetched.jobs[1:]])
    group = ErrorCount("e", "t1", "ValueError", "boom", 1, "j1")
    await store.add_stats([StatsReport("mail", "w1", 1, [TaskCount("t1", TaskStats(1, 1))], [group])])


def test_acts_ask_first_and_are_in_the_audit_log(memory: MemoryStore) -> None:
    async def drive(pilot: Pilot[None]) -> None:
        await pilot.press("3", "c", "n")
        assert not (await memory.get([job.ref for job in (await memory.list_jobs()).jobs]))[-1].cancel_asked
        await pilot.press("c", "y")
        await reads(pilot)
        assert "mail/j0: asked to stop" in text(pilot)
        await pilot.press("4", "r", "y")
        await reads(pilot)
        await pilot.press("d", "y")
        await reads(pilot)
        assert "dead 0" in text(pilot)

    run(memory, drive)

    async def audited() -> list[str]:
        return [one.entry.act async for one in AuditLog(memory).newest_first()]

    assert asyncio.run(audited()) == ["jobs.delete", "jobs.retry", "jobs.cancel"]


def test_all_dead_jobs_of_a_task_are_retried_from_the_errors(memory: MemoryStore) -> None:
    async def drive(pilot: Pilot[None]) -> None:
        await pilot.press("5", "r")
        await reads(pilot)
        assert "retry 1 dead job of the task" in " ".join(text(pilot).replace("│", " ").split())
        await pilot.press("y")
        await pilot.pause(0.3)
        await reads(pilot)
        assert "retry: 1 done, 0 refused" in text(pilot)

    run(memory, drive)


def test_read_only_changes_nothing(memory: MemoryStore) -> None:
    async def drive(pilot: Pilot[None]) -> None:
        await pilot.press("p", "y", "3", "c", "y")
        await reads(pilot)
        assert "read-only" in text(pilot)
        assert "pause" not in text(pilot)
        assert len(pilot.app.screen_stack) == 1

    run(memory, drive, read_only=True)
    assert not memory.sync.queues()[0].paused


class Fragile(MemoryStore):
    """A store that can go away."""

    away = False

    async def queues(self, names: Any = None) -> Any:
        if self.away:
            raise StoreUnavailable("connection refused")
        return await super().queues(names)


def test_a_store_that_goes_away_is_shown_and_comes_back() -> None:
    store = Fragile()
    asyncio.run(fill(store))

    async def drive(pilot: Pilot[None]) -> None:
        store.away = True
        await reads(pilot)
        assert "the store does not answer for 0 s: connection refused" in text(pilot)
        assert "mail" in text(pilot)  # what is known stays
        await pilot.press("p")
        store.away = False
        await pilot.press("n")
        await reads(pilot)
        assert "the store answers again" in text(pilot)

    run(store, drive)


def test_the_totals_and_the_help_fit_a_small_terminal(memory: MemoryStore) -> None:
    counts = {State.AVAILABLE: 1_234_567, State.RUNNING: 200, State.SCHEDULED: 12_345, State.DEAD: 99_999}
    queue = queue_view(QueueInfo("mail", counts))

    def view(now: int, done: int) -> Overview:
        seen = asyncio.run(Inspector(memory).overview())
        return replace(seen, now=now, queues=[queue], stats={"mail": QueueStats("mail", done, done, 7, [])})

    first, second = view(0, 0), view(1_000, 1_234)
    long = "ready 1,234,567  running 200/4  later 12,345  dead 99,999  in 1,234/s  done 1,234/s  failed 0.0/s"
    assert totals(second, Rates(first, second), 200) == long
    short = "ready 1.2M running 200 later 12k dead 100k in 1.2k/s done 1.2k/s failed 0/s"
    assert totals(second, Rates(first, second), 79) == short
    # the dialog takes 90 % of 80 × 24, with its frame
    assert max(map(len, HELP.splitlines())) <= 68
    assert len(HELP.splitlines()) <= 19


def test_rates_are_known_again_after_the_clock_of_the_store_was_set_back(memory: MemoryStore) -> None:
    async def drive(pilot: Pilot[None]) -> None:
        top = pilot.app
        assert isinstance(top, Top)
        view = top._view
        assert view is not None
        for now in (view.now - 3_600_000, view.now - 3_599_000):
            top._took(replace(view, now=now))
        assert top._rates is not None
        assert top._rates.total() is not None

    run(memory, drive)


def test_rows_are_sorted_and_filtered_and_the_chosen_one_stays_chosen(memory: MemoryStore) -> None:
    memory.sync.enqueue([NewJob(f"n{n}", "t", queue=f"q{n}") for n in range(3)])

    async def drive(pilot: Pilot[None]) -> None:
        await pilot.press("down", "s", "s", "o")
        top = pilot.app
        assert isinstance(top, Top)
        assert "by RUN ▼" in text(pilot)
        assert top._table.row().key == "q0"
        assert top._table.cursor_row == 1
        await pilot.press("slash", "q", "2", "enter")
        await pilot.pause()
        assert "by RUN ▼  with 'q2'" in text(pilot)
        assert [row.key for row in top._table._shown] == ["q2"]
        await pilot.press("escape")
        assert len(top._table._shown) == 4

    run(memory, drive)


def test_details_and_help_are_shown_and_foreign_text_moves_nothing(memory: MemoryStore) -> None:
    async def drive(pilot: Pilot[None]) -> None:
        await pilot.press("4", "enter")
        await pilot.pause(0.1)
        shown = text(pilot)
        assert "Traceback: here" in shown
        assert r"boom [red]now[/red]\x1b[2J" in shown
        await pilot.press("escape", "2", "enter")
        await pilot.pause(0.1)
        assert "box, process 7, version 0.1.0" in text(pilot)
        await pilot.press("q", "question_mark")
        await pilot.pause()
        assert "choose a pane" in text(pilot)

    run(memory, drive)


def test_without_textual_or_a_terminal_the_way_out_is_named(penstock: Cli, monkeypatch) -> None:
    assert "top needs a terminal: use `penstock queues list --watch`" in penstock.says(1, "top")
    assert "top has no --json" in penstock("top", "--json").stderr
    monkeypatch.setattr("penstock.core.installation.is_installed", lambda name: False)
    assert penstock.says(2, "top").endswith("not installed: pip install 'penstock[tui]'")
