"""The calls of one `run` on their way to an answer each: what is sent where, and again, and when to stop.

Nothing here does I/O; the async and the sync runner do what an errand says:

    while not errand.done:
        look, if the directory is vague
        for parcel in errand.parcels(): deliver it; then parcel.came / parcel.lost / parcel.unsent
        wait for errand.pause() seconds
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from penstock.core.duration import format_ms
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.calls import Acked, Call
from penstock.stores.redis.wire.encoding import packed
from penstock.stores.redis.wire.faults import ErrorReply, Meaning, ReplyLost, Step, read
from penstock.stores.redis.wire.handshake import Kind
from penstock.stores.redis.wire.topology import Directory

__all__ = ["Errand", "Parcel", "backoff"]

#: So often a call may be sent on, or its script loaded, before we pause between the tries.
_EAGER = 4
#: Calls that are `brief` are tried for so long (seconds).
_BRIEF = 1.0
#: What is larger brings its scripts along (bytes).
_LARGE = 262_144
_ASKING = packed("ASKING")


def backoff(tries: int, *, first: float = 0.02, most: float = 0.5) -> float:
    """Seconds to wait before the next try, spread so that many clients do not come at once."""
    return float(min(most, first * 2 ** min(tries, 16)) * (0.5 + random.random() / 2))  # noqa: S311 (jitter, no secret)


class _Item:
    """One call, and what has become of it so far."""

    __slots__ = ("asking", "call", "doubtful", "index", "load", "trouble")

    def __init__(self, index: int, call: Call) -> None:
        self.index = index
        self.call = call
        self.load = False  # its script must be loaded first
        self.asking: Node | None = None  # this node has it, for this once
        self.doubtful = False  # it was sent once and its reply lost
        self.trouble: StoreError | None = None


class Errand:
    """`answers` has one for each call, in their order, once `done`."""

    def __init__(
        self, calls: Sequence[Call], directory: Directory, address: Address, within: int | None
    ) -> None:
        self.answers: list[Any] = [None] * len(calls)
        self.within = address.timeout if within is None else within
        self.until = time.monotonic() + self.within / 1000
        if any(call.replicas for call in calls):
            self.until += address.wait_timeout / 1000
        #: Until when a connection may be waited for; and, if calls are brief, until when those are tried.
        self.connect_until = self.until
        self._brief = any(call.brief for call in calls)
        if self._brief:
            self.connect_until = min(self.until, time.monotonic() + _BRIEF)
        self._directory = directory
        self._address = address
        self._todo = [_Item(index, call) for index, call in enumerate(calls)]
        self._tries = 0
        self._hurry = False  # the next try is expected to work: no pause before it
        self._bounced = 0

    @property
    def done(self) -> bool:
        return not self._todo

    def parcels(self) -> list[Parcel]:
        """What is to be sent now, one parcel for each connection, in the order of the calls."""
        todo, self._todo = self._todo, []
        node_of = self._directory.node_of
        parcels: dict[tuple[Node, Kind], Parcel] = {}
        self._hurry = True
        for item in todo:
            call = item.call
            node = item.asking or node_of(call.keys[0] if call.keys else None)
            if node is None:
                self._directory.doubt(self._directory.edition)
                self._later(item, StoreUnavailable(f"{self._address.url}: nobody is in charge of this now"))
                continue
            place: tuple[Node, Kind] = (node, "waits" if call.replicas else "calls")
            parcel = parcels.get(place)
            if parcel is None:
                parcel = parcels[place] = Parcel(self, *place, self._directory.edition)
            parcel.items.append(item)
        return list(parcels.values())

    def pause(self) -> float:
        """Seconds to wait before the next round. When the time is up, what is left is answered with why."""
        if not self._todo:
            return 0.0
        self._todo.sort(key=lambda item: item.index)
        left = self.until - time.monotonic()
        if self._hurry and self._bounced < _EAGER and left > 0:
            self._bounced += 1
            return 0.0
        seconds = backoff(self._tries)
        self._tries += 1
        if self._brief and self.connect_until - time.monotonic() <= seconds:
            self._give_up([item for item in self._todo if item.call.brief])
        if left <= seconds:
            self._give_up(self._todo)
        return seconds if self._todo else 0.0

    def cannot_look(self, error: StoreError) -> None:
        """Nobody says who is in charge."""
        self._hurry = False
        for item in self._todo:
            item.trouble = error
        if not isinstance(error, StoreUnavailable):
            self._give_up(self._todo)

    def _give_up(self, on: list[_Item]) -> None:
        self._todo = [item for item in self._todo if item not in on]
        for item in on:
            trouble = item.trouble or StoreUnavailable(f"{self._address.url} does not answer")
            if isinstance(trouble, StoreUnavailable):
                after = 1000 * _BRIEF if item.call.brief else self.within
                trouble = type(trouble)(f"{trouble}; gave up after {format_ms(min(int(after), self.within))}")
            self._fail(item, trouble)

    def _fail(self, item: _Item, error: StoreError) -> None:
        if item.doubtful and not isinstance(error, ReplyLost):
            error = ReplyLost(f"{error} (it was sent before, and may have been carried out)")
        self.answers[item.index] = error

    # ── what became of a parcel ──

    def _answered(self, item: _Item, reply: Any, parcel: Parcel, replicas: int) -> None:
        item.asking = None
        if not isinstance(reply, ErrorReply):
            self.answers[item.index] = Acked(reply, replicas) if item.call.replicas else reply
            return
        meaning = read(str(reply), self._address.at(parcel.node))
        match meaning.step:
            case Step.LOAD if item.call.script is not None:
                item.load = True
                self._again(item, meaning)
            case Step.MOVED:
                self._directory.moved(meaning, parcel.node)
                self._again(item, meaning)
            case Step.ASK:
                item.asking = self._directory.moved(meaning, parcel.node)
                self._again(item, meaning)
            case Step.ELSEWHERE:
                self._directory.doubt(parcel.edition)
                parcel.shun = True
                self._later(item, meaning.error)
            case Step.LATER:
                self._later(item, meaning.error)
            case _:
                assert meaning.error is not None
                self._fail(item, meaning.error)

    def _again(self, item: _Item, meaning: Meaning) -> None:
        item.trouble = meaning.error
        if self._bounced < _EAGER:  # it has answered, and the way there may have been long
            self.until = max(self.until, time.monotonic() + self.within / 1000)
        self._todo.append(item)

    def _later(self, item: _Item, error: StoreError | None) -> None:
        item.trouble = error
        self._hurry = False
        self._todo.append(item)

    def _lost(self, item: _Item, error: StoreError) -> None:
        item.doubtful = True
        item.asking = None
        if item.call.repeatable:
            self._hurry = self._hurry and self._tries == 0
            item.trouble = error
            self._todo.append(item)
        else:
            self._fail(item, ReplyLost(f"{error}; it may have been carried out"))

    def _unsent(self, item: _Item, error: StoreError) -> None:
        item.asking = None
        if isinstance(error, StoreUnavailable):
            self._later(item, error)
        else:
            self._fail(item, error)


class Parcel:
    """What goes to one server in one write, and what is to be made of what comes back."""

    __slots__ = ("_errand", "_scripts", "_waits", "edition", "items", "kind", "node", "shun")

    def __init__(self, errand: Errand, node: Node, kind: Kind, edition: int) -> None:
        self.node = node
        self.kind: Kind = kind
        self.edition = edition
        self.items: list[_Item] = []
        self.shun = False  # the runner drops this connection: the server is not who it was
        self._errand = errand
        self._scripts = 0
        self._waits = 0

    @property
    def until(self) -> float:
        return self._errand.until

    @property
    def connect_until(self) -> float:
        return self._errand.connect_until

    def packed(self) -> tuple[bytes, int]:
        """The bytes, and the number of replies that they ask for."""
        items = self.items
        commands = [_command(item.call) for item in items]
        if sum(map(len, commands)) > _LARGE:  # to be told NOSCRIPT would cost as much once more
            for item in items:
                item.load = item.call.script is not None
        if len(items) == 1 and self.kind == "calls":
            item = items[0]
            if not item.load and item.asking is None:
                return commands[0], 1
        parts: list[bytes] = []
        texts = {item.call.script.text for item in items if item.load and item.call.script}
        self._scripts = len(texts)
        parts += [packed("SCRIPT", "LOAD", text) for text in texts]
        for item, command in zip(items, commands, strict=True):
            if item.asking is not None:
                parts.append(_ASKING)
            parts.append(command)
        if self.kind == "waits":
            # one for all: what it says of the last write holds for those before it
            replicas = max(item.call.replicas for item in items)
            parts.append(packed("WAIT", replicas, self._errand._address.wait_timeout))
            self._waits = 1
        return b"".join(parts), len(parts)

    def came(self, replies: list[Any]) -> None:
        """All replies are there."""
        errand, items = self._errand, self.items
        at, replicas = self._scripts, 0
        if self._waits and isinstance(replies[-1], int):
            replicas = replies[-1]
        unloadable = [reply for reply in replies[:at] if isinstance(reply, ErrorReply)]
        for item in items:
            at += item.asking is not None
            reply = replies[at]
            if unloadable and item.load:
                reply = unloadable[0]
            at += 1
            errand._answered(item, reply, self, replicas)

    def lost(self, why: str, replies: list[Any]) -> None:
        """The connection was lost behind these replies."""
        errand = self._errand
        errand._directory.doubt(self.edition, self.node)
        error = StoreUnavailable(f"{errand._address.at(self.node)}: {why}")
        at = self._scripts
        loaded = not any(isinstance(reply, ErrorReply) for reply in replies[:at])
        for item in self.items:
            at += item.asking is not None
            if at < len(replies) and (loaded or not item.load):
                # nobody knows about the replicas then, and to ask again would not tell
                errand._answered(item, replies[at], self, 0)
            else:
                errand._lost(item, error)
            at += 1

    def unsent(self, error: StoreError) -> None:
        """Nothing of it was written."""
        self._errand._directory.doubt(self.edition, self.node)
        for item in self.items:
            self._errand._unsent(item, error)


def _command(call: Call) -> bytes:
    if call.script is None:
        return packed(*call.ask)
    return packed("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)
