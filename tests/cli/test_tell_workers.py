"""`penstock workers quiet|drain|stop|restart|stacks` tell workers what to do."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.stores.contract import Store, WorkerInfo
from penstock.stores.worker_commands import CommandChannel, CommandReply
from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def workers(store: Store) -> None:
    async def announcing() -> None:
        for id, supervisor in (("0a1-x", 7), ("0a1-y", 7), ("0b2", None)):
            await store.announce(
                WorkerInfo(id, "box", 1, 0, ("q",), ("t",), 2, supervisor=supervisor, memory=2_500_000)
            )

    asyncio.run(announcing())


def answering(store: Store, worker: str, reply: CommandReply) -> threading.Thread:
    """A thread that answers the next command for this worker."""

    async def answer() -> None:
        channel = CommandChannel(store)
        while not (found := await channel.commands(worker)):
            await asyncio.sleep(0.01)
        await channel.answer(found[0][0], reply)

    thread = threading.Thread(target=lambda: asyncio.run(answer()), daemon=True)
    thread.start()
    return thread


def test_the_answers_are_shown_and_one_counts_for_all_of_its_supervisor(penstock: Cli, store: Store) -> None:
    answering(store, "0a1-y", CommandReply(True, "drains"))
    answering(store, "0b2", CommandReply(False, "it cannot"))
    told = penstock("workers", "drain", "--all", "--yes")
    assert told.exit_code == 1
    assert told.stdout == "0a1-x: drains\n0a1-y: drains\n"
    assert told.stderr == "0b2: it cannot\n"
    (entry,) = penstock.json("audit")["entries"]
    assert (entry["entry"]["act"] if "entry" in entry else entry["act"]) == "workers.drain"


def test_stacks_are_printed_whole(penstock: Cli, store: Store) -> None:
    answering(store, "0b2", CommandReply(True, "thread Main\n  line 1\n"))
    assert penstock.ok("workers", "stacks", "0b").rstrip() == "worker 0b2\nthread Main\n  line 1"


def test_a_worker_that_does_not_answer_is_named_and_never_obeys_later(penstock: Cli, store: Store) -> None:
    told = penstock("workers", "stop", "0b2", "--wait", "0s")
    assert told.exit_code == 4
    assert told.stderr == "0b2: no answer; it may still obey\n"
    assert asyncio.run(CommandChannel(store).commands("0b2")) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "name workers by id, or select them with --all or --host"),
        (("0b2", "--all"), 2, "name workers by id, or select them with --all or --host"),
        (("0c",), 3, "there is no worker '0c'"),
        (("0a1",), 1, "'0a1' begins the ids of 2 workers: name one of 0a1-x, 0a1-y"),
        (("--host", "other"), 3, "there is no worker on the host 'other'"),
        (("0b2", "--wait", "soon"), 2, "--wait"),
    ],
)
def test_what_is_not_clear_tells_nobody(penstock: Cli, store: Store, words, code, says) -> None:
    told = penstock("workers", "quiet", *words)
    assert told.exit_code == code, told.output
    assert says in told.stderr
    assert asyncio.run(store.documents("worker-commands")).documents == []


def test_memory_is_listed(penstock: Cli) -> None:
    assert "2 MB" in penstock.ok("workers").splitlines()[1]
