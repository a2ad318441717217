"""Commands that an operator sends to worker processes through the store, and the workers' replies.

A command is a document of the kind `worker-commands` that wakes the worker (`change_documents(notify=True)`).
The reply is a document of the kind `worker-replies` with the same name.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.ids import mint
from penstock.encryption import why_not_here
from penstock.stores.contract import Document, DocumentChange, DocumentStatus, Store

#: The kind of the documents that are bulk acts, which workers run (`inspector/bulk_acts.py`).
BULK_ACTS = "bulk-acts"
_COMMANDS, _REPLIES = "worker-commands", "worker-replies"
#: A worker that is away for longer than this (ms) ignores the command: the operator has seen no reply.
_VALID = 60_000
#: How long (ms) a reply waits to be read.
_REPLY_KEPT = 300_000
#: The most bytes of a reply's text.
LONGEST_REPLY = 48_000
_AT_ONCE = 500
#: How often (s) the sender looks for replies.
_LOOK_EVERY = 0.05


class WorkerAct(enum.StrEnum):
    """What a worker can be told to do.

    - QUIET: fetch no more jobs; running jobs continue.
    - DRAIN: fetch no more jobs, give running jobs the drain time, then end.
    - STOP: end at once; running jobs are released to other workers.
    - RESTART: start a replacement, then drain. Only for a worker with a supervisor.
    - STACKS: report the stacks of all threads and tasks.

    A worker with a supervisor is quieted, drained and stopped with all processes of that supervisor, because
    the supervisor would replace a single one.
    """

    QUIET = "quiet"
    DRAIN = "drain"
    STOP = "stop"
    RESTART = "restart"
    STACKS = "stacks"

    __hash__ = str.__hash__


#: What a supervisor does with all of its processes.
SHARED_ACTS = frozenset({WorkerAct.QUIET, WorkerAct.DRAIN, WorkerAct.STOP})


class WorkerCommand(msgspec.Struct, frozen=True):
    """A command to one worker. `by` names who sent it, e.g. `cli:ann@host`."""

    act: WorkerAct
    by: str = ""


class CommandReply(msgspec.Struct, frozen=True):
    """A worker's reply. `done`: whether the worker does it; `text` explains, or is the report."""

    done: bool
    text: str = ""


class SentCommand(msgspec.Struct, frozen=True):
    """A command that was sent: the worker, the id of the command, and the reply; None: none came.

    `supervisor`: the supervisor that obeys for all of its processes; the reply of one counts for all.
    """

    worker: str
    id: str
    reply: CommandReply | None = None
    supervisor: str = ""


class CommandChannel:
    """Sends commands to workers and collects their replies. A worker reads its own commands here, too."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # the operator

    async def send(
        self, workers: Sequence[str], act: WorkerAct, *, by: str = "", supervisors: Mapping[str, str] = {}
    ) -> list[SentCommand]:
        """Send a command to each worker, by id. `supervisors` has those of workers with the same supervisor.

        Raises ConfigError if too many commands are unread.
        """
        body = msgspec.json.encode(WorkerCommand(act, by))
        sent = [SentCommand(worker, mint(), None, supervisors.get(worker, "")) for worker in workers]
        for n in range(0, len(sent), _AT_ONCE):
            changes = [DocumentChange(_name(one), body, expires_in=_VALID) for one in sent[n : n + _AT_ONCE]]
            written = await self._store.change_documents(_COMMANDS, changes, notify=True)
            if any(one.status is DocumentStatus.FULL for one in written):
                raise ConfigError("too many commands are unread: send them again in a minute")
        return sent

    async def replies(self, sent: Sequence[SentCommand], *, timeout: float) -> list[SentCommand]:
        """Wait up to `timeout` seconds for the replies, and return the commands with those that came.

        Commands without a reply are withdrawn, so that no worker obeys them later.
        """
        found: dict[str, CommandReply] = {}
        by_supervisor: dict[str, CommandReply] = {}
        missing = list(sent)
        end = asyncio.get_running_loop().time() + timeout
        version = -1
        while missing:
            (now,) = await self._store.document_versions([_REPLIES])
            if now != version:
                version = now
                for one in missing:
                    if (reply := await self._reply(_name(one))) is not None:
                        found[_name(one)] = by_supervisor[one.supervisor or one.id] = reply
                missing = [one for one in missing if (one.supervisor or one.id) not in by_supervisor]
            if not missing or asyncio.get_running_loop().time() >= end:
                break
            await asyncio.sleep(_LOOK_EVERY)
        await self._remove(_REPLIES, list(found))
        await self._remove(_COMMANDS, [_name(one) for one in sent if _name(one) not in found])
        return [
            msgspec.structs.replace(
                one, reply=found.get(_name(one), by_supervisor.get(one.supervisor or one.id))
            )
            for one in sent
        ]

    # the worker

    async def version(self) -> int:
        """A number that changes with each command, of any worker."""
        (version,) = await self._store.document_versions([_COMMANDS])
        return version

    async def commands(self, worker: str) -> list[tuple[SentCommand, WorkerCommand]]:
        """The unread commands for this worker, oldest first. They stay until `answer`."""
        after = f"{worker}/"
        page = await self._store.documents(_COMMANDS, after=after, limit=100)
        mine = [one for one in page.documents if one.name.startswith(after)]
        found = [(SentCommand(worker, one.name.removeprefix(after)), _read(one)) for one in mine]
        await self._remove(
            _COMMANDS, [one.name for one, (_, command) in zip(mine, found, strict=True) if not command]
        )
        return [(sent, command) for sent, command in found if command is not None]

    async def answer(self, sent: SentCommand, reply: CommandReply) -> None:
        """Store the reply to a command, and remove the command."""
        text = reply.text.encode("utf-8", "backslashreplace")
        if len(text) > LONGEST_REPLY:
            cut = text[:LONGEST_REPLY].decode("utf-8", "ignore")
            reply = CommandReply(reply.done, f"{cut}\n… ({len(text) - LONGEST_REPLY:,} more bytes)")
        change = DocumentChange(_name(sent), msgspec.json.encode(reply), expires_in=_REPLY_KEPT)
        await self._store.change_documents(_REPLIES, [change])
        await self._remove(_COMMANDS, [_name(sent)])

    # private

    async def _reply(self, name: str) -> CommandReply | None:
        document, _ = await read_document(self._store, _REPLIES, name)
        return None if document is None else _reply_of(document.body)

    async def _remove(self, kind: str, names: Sequence[str]) -> None:
        for n in range(0, len(names), _AT_ONCE):
            await self._store.change_documents(
                kind, [DocumentChange(name, None) for name in names[n : n + _AT_ONCE]]
            )


async def read_document(store: Store, kind: str, name: str) -> tuple[Document | None, int]:
    """The document of this kind and name, which ends with an id, and the store's clock.

    Only ids with the same beginning are between a prefix of the name and the name.
    """
    page = await store.documents(kind, after=name[:-1], limit=64)
    return next((one for one in page.documents if one.name == name), None), page.now


def parse_act(text: str) -> WorkerAct:
    """Read the name of an act. Raises ConfigError."""
    try:
        return WorkerAct(text.lower())
    except ValueError:
        known = [act.value for act in WorkerAct]
        near = did_you_mean(text.lower(), known)
        raise ConfigError(f"{text!r} is nothing a worker can do{near}: one of {', '.join(known)}") from None


def _name(sent: SentCommand) -> str:
    return f"{sent.worker}/{sent.id}"


def _reply_of(body: bytes) -> CommandReply:
    try:
        return msgspec.json.decode(body, type=CommandReply)
    except msgspec.MsgspecError:
        why = why_not_here(body) or "another version of Penstock has written it, or it is damaged"
        return CommandReply(False, f"it may obey, but its reply cannot be read: {why}")


def _read(document: Document) -> WorkerCommand | None:
    """The command of a document; None if a newer version wrote it, or it is damaged."""
    try:
        return msgspec.json.decode(document.body, type=WorkerCommand)
    except msgspec.MsgspecError:
        return None
