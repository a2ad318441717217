"""`--watch` shows a list again and again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from penstock.errors import StoreUnavailable
from penstock.stores.contract import Store
from tests.cli.conftest import Cli, at_terminal, put
from tests.terminal import terminal


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_list_is_repainted_in_place_and_fits_the_terminal(store: Store, tmp_path) -> None:
    put(store, "0199aaaa-bbbb-7ccc-8ddd-000000000000", queue="mail", task="tasks.with.a.long.name")
    put(store, *(f"j{n}" for n in range(30)), queue="mail")
    with terminal(tmp_path, "--url", store.url, "jobs", "list", "--watch", "0.2") as shown:
        lines = shown.shows("penstock jobs list, every 0.2 s", "j29", "…")
        assert lines[1].split() == ["ID", "QUEUE", "TASK", "STATE", "WHEN"]
        assert max(map(len, lines)) <= 80
        assert lines[22] == "…"
        put(store, "newest", queue="mail")
        assert shown.shows("newest")[2].startswith("newest")
        shown.resize(200, 50)
        lines = shown.shows("ATTEMPT", "tasks.with.a.long.name", "0199aaaa-bbbb-7ccc-8ddd-000000000000")
        assert "\n".join(lines).count("penstock jobs list, every") == 1
        shown.press("C-c")
        assert "ended 0" in "\n".join(shown.shows("ended"))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_json_lines_are_appended_until_interrupted(store: Store) -> None:
    put(store, "a", queue="mail")
    command = [
        sys.executable,
        "-m",
        "penstock",
        "--url",
        store.url,
        "queues",
        "list",
        "--watch=0.1",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        first = json.loads(ran.stdout.readline())
        put(store, "b", queue="news")
        while [queue["name"] for queue in json.loads(ran.stdout.readline())["queues"]] != ["mail", "news"]:
            pass
        ran.send_signal(signal.SIGINT)
        rest, errors = ran.communicate(timeout=60)
    assert [queue["name"] for queue in first["queues"]] == ["mail"]
    assert all(json.loads(line) for line in rest.splitlines())
    assert (ran.returncode, errors) == (0, "")


def watched(penstock: Cli, monkeypatch, times: int, *words: str, on_wait=lambda n: None):
    """Run a command that waits so often, and is interrupted then."""
    waits = []

    def wait(timeout: float) -> None:
        waits.append(timeout)
        on_wait(len(waits))
        if len(waits) == times:
            raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.watching._pause", wait)
    return penstock(*words), waits


def test_a_store_that_goes_away_is_shown_and_does_not_end_it(
    penstock: Cli, store: Store, monkeypatch
) -> None:
    from penstock.inspector import Inspector

    put(store, "a", queue="mail")
    real = Inspector.queues

    async def away(self) -> None:
        raise StoreUnavailable("connection refused")

    def on_wait(n: int) -> None:
        monkeypatch.setattr(Inspector, "queues", away if n == 1 else real)

    result, waits = watched(penstock, monkeypatch, 3, "queues", "list", "--watch", "3", on_wait=on_wait)
    assert result.exit_code == 0
    assert waits == [3, 3, 3]
    assert result.stdout.count("penstock queues list, every 3 s") == 3
    assert result.stdout.count("mail") == 2
    assert "penstock: error: connection refused" in result.stdout
    monkeypatch.setattr(Inspector, "queues", away)
    assert "connection refused" in penstock.says(4, "queues", "list", "--watch")


@pytest.mark.parametrize(
    "words",
    [
        *("queues list", "queues parked", "jobs list", "workers", "workers list", "stats", "errors"),
        *("periodic list", "flows list", "batches list", "bulk list", "audit"),
    ],
)
def test_every_list_can_be_watched(penstock: Cli, monkeypatch, words: str) -> None:
    result, waits = watched(penstock, monkeypatch, 2, *words.split(), "--watch", "--json")
    assert waits == [2, 2]
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == 2


@pytest.mark.parametrize("given", ["soon", "1x"])
def test_an_interval_that_is_none_is_refused(penstock: Cli, given: str) -> None:
    assert "--watch" in penstock.says(2, "queues", "list", f"--watch={given}")


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_no_color_is_respected(store: Store) -> None:
    put(store, "a")
    assert "\x1b" not in at_terminal("--url", store.url, "jobs", "list", NO_COLOR="1")
