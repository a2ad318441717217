"""`--follow` prints what is new, line by line, until Ctrl-C, and survives an outage of the store."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from penstock.cli import watching
from penstock.core.job import State
from penstock.core.lifecycle import Transition
from penstock.errors import StoreUnavailable
from penstock.inspector import Inspector
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import Settlement
from tests.cli.conftest import kill, logging_job, put


@pytest.fixture
def pauses(monkeypatch):
    """What happens in the pauses between two looks, one act each; then Ctrl-C."""

    def set_acts(*acts) -> list[bytes]:
        left, printed = list(acts), []

        async def pause():
            printed.append(sys.stdout.buffer.getvalue())
            if not left:
                raise KeyboardInterrupt
            await asyncio.to_thread(left.pop(0))

        monkeypatch.setattr(watching, "_rest", pause)
        return printed

    return set_acts


def nothing() -> None:
    """No act."""


def test_a_followed_log_is_printed_line_by_line_also_as_json_and_survives_an_outage(
    penstock, store, pauses, monkeypatch
):
    job = logging_job(store, "one", "two")
    usual, asked = Inspector.job, []

    async def found(self, address):
        asked.append(address)
        if 2 <= len(asked) <= 4:
            raise StoreUnavailable("connection refused")
        return await usual(self, address)

    monkeypatch.setattr(Inspector, "job", found)
    end = Settlement(job.lease, Transition(State.COMPLETED, keep=60_000))
    printed = pauses(nothing, nothing, nothing, lambda: asyncio.run(store.settle([end])))
    result = penstock("jobs", "log", "a", "--follow", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("text") for line in lines] == ["one", "two", None]
    assert lines[2]["error"]["code"] == 4
    assert result.stderr == "penstock: error: connection refused\n"  # once, of three times
    assert result.exit_code == 0
    assert printed[0].count(b"text") == 2  # before the job has ended


def test_ctrl_c_ends_a_followed_log_without_an_error(penstock, store, pauses):
    logging_job(store, "one")
    pauses()
    assert penstock.ok("jobs", "log", "a", "--follow").endswith("one\n")


def test_new_jobs_are_printed_once_as_they_are_enqueued(penstock, store, pauses):
    put(store, "before")
    pauses(lambda: put(store, "a", "b"), lambda: kill(store, 1), lambda: put(store, "c", queue="mail"))
    lines = penstock.ok("jobs", "list", "--follow").splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["available", "default/a", "t"],
        ["available", "default/b", "t"],
        ["available", "mail/c", "t"],
    ]


def test_jobs_are_printed_as_they_die_and_a_filter_leaves_others_out(penstock, store, pauses):
    put(store, "a", "b", "c")
    pauses(lambda: kill(store, 1), lambda: kill(store, 1))
    lines = [
        json.loads(line) for line in penstock.ok("jobs", "list", "-s", "dead", "-f", "--json").splitlines()
    ]
    assert [(line["id"], line["state"]) for line in lines] == [("a", "dead"), ("b", "dead")]
    pauses(lambda: kill(store, 1))
    assert penstock.ok("jobs", "list", "-s", "dead", "-f", "--task", "other") == ""


def test_followed_jobs_begin_at_since(penstock, store, pauses):
    put(store, "before")
    pauses(lambda: put(store, "after"))
    said = penstock.ok("jobs", "list", "--follow", "--since", "1h")
    assert [line.split()[2] for line in said.splitlines()] == ["default/before", "default/after"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-n", "5"), "it cannot have -n"),
        (("--reverse",), "it cannot have --reverse"),
        (("--until", "+1h"), "it cannot have --until"),
        (("--by", "due"), "give no other --by"),
        (("--state", "running"), "give no other --state"),
        (("--watch",), "give one of them"),
    ],
)
def test_what_makes_no_sense_for_jobs_to_come_is_refused(penstock, store, options, says):
    assert says in penstock.says(2, "jobs", "list", "--follow", *options)


def test_acts_are_printed_as_they_are_done(penstock, store, pauses):
    log = AuditLog(store)

    def act(who):
        return lambda: asyncio.run(log.write(who, "queue.pause", "mail"))

    act("cli:old@box")()
    pauses(act("cli:ann@box"), nothing, act("token:deploy"))
    lines = penstock.ok("audit", "--follow").splitlines()
    assert [line.split("  ")[1:] for line in lines] == [
        ["cli:ann@box", "queue.pause", "mail"],
        ["token:deploy", "queue.pause", "mail"],
    ]
    pauses(act("cli:ann@box"), act("token:deploy"))
    (line,) = penstock.ok("audit", "-f", "--json", "--who", "token:").splitlines()
    assert json.loads(line)["who"] == "token:deploy"
