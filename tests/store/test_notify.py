"""A change of documents wakes waiting workers if it is asked to, e.g. with a command for a worker."""

from __future__ import annotations

import asyncio

import pytest

from penstock.inspector import WorkerAct
from penstock.stores.contract import DocumentChange, Store, Wake
from penstock.stores.worker_commands import CommandChannel, CommandReply, SentCommand
from tests.store.facts import OpenStore

PUT = DocumentChange("w/1", b"{}")


async def woken(store: Store, *changes: DocumentChange, notify: bool) -> Wake:
    """How a worker wakes that waits without queues while these changes are made."""
    await store.wait((), timeout=0)
    await store.change_documents("commands", changes, notify=notify)
    return await store.wait((), timeout=0)


async def test_a_notifying_change_wakes_waiters_with_settings(store: Store) -> None:
    waiting = asyncio.ensure_future(store.wait(["q"], timeout=20_000))
    await asyncio.sleep(0)
    assert Wake.SETTINGS in await woken(store, PUT, notify=True)
    assert Wake.SETTINGS in await waiting


async def test_other_changes_wake_nobody(store: Store) -> None:
    assert await woken(store, PUT, notify=False) is Wake.NOTHING
    assert await woken(store, DocumentChange("w/2", b"", expected=7), notify=True) is Wake.NOTHING


async def test_a_worker_gets_its_own_commands_and_its_reply_comes_back(store: Store) -> None:
    channel = CommandChannel(store)
    sent = await channel.send(["w-1", "w-2"], WorkerAct.QUIET, by="cli:ann")
    ((mine, command),) = await channel.commands("w-1")
    assert (mine, command.act, command.by) == (sent[0], WorkerAct.QUIET, "cli:ann")
    await channel.answer(mine, CommandReply(True, "x" * 60_000))
    assert await channel.commands("w-1") == []
    first, second = await channel.replies(sent, timeout=0.1)
    assert first.reply is not None
    assert first.reply.text.endswith("… (12,000 more bytes)")
    assert second == SentCommand("w-2", sent[1].id)
    assert await channel.commands("w-2") == [], "a command without a reply is withdrawn"
    assert (await store.documents("worker-replies")).documents == []


async def test_a_command_that_cannot_be_read_is_removed(store: Store) -> None:
    await store.change_documents("worker-commands", [DocumentChange("w/1", b'{"act": "dance"}')])
    assert await CommandChannel(store).commands("w") == []
    assert (await store.documents("worker-commands")).documents == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"$sealed":"1.0123abcd.AAAA"}', "it is encrypted with the key 0123abcd, and there is no key here"),
        (b'{"done": 7}', "another version of Penstock has written it, or it is damaged"),
    ],
)
async def test_a_reply_that_cannot_be_read_says_why(store: Store, body: bytes, says: str) -> None:
    channel = CommandChannel(store)
    sent = await channel.send(["w"], WorkerAct.DRAIN)
    await store.change_documents("worker-replies", [DocumentChange(f"w/{sent[0].id}", body)])
    (one,) = await channel.replies(sent, timeout=0.1)
    assert one.reply is not None
    assert not one.reply.done
    assert f"it may obey, but its reply cannot be read: {says}" in one.reply.text


async def test_two_operators_each_get_the_reply_to_their_own_command(
    open_store: OpenStore, store: Store
) -> None:
    ann, bob = CommandChannel(store), CommandChannel(open_store())
    sent = [
        await ann.send(["w"], WorkerAct.QUIET, by="ann"),
        await bob.send(["w"], WorkerAct.STACKS, by="bob"),
    ]
    for mine, command in await CommandChannel(open_store()).commands("w"):
        await ann.answer(mine, CommandReply(True, f"{command.act.value} for {command.by}"))
    replies = await asyncio.gather(ann.replies(sent[0], timeout=5), bob.replies(sent[1], timeout=5))
    assert [one.reply.text for (one,) in replies if one.reply] == ["quiet for ann", "stacks for bob"]
