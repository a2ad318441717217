"""Which server is in charge of a key, and how to find out: fixed, asked of sentinels, or a cluster's map.

Nothing here does I/O: `look` is a conversation that yields a `Question` and is sent its replies, so that the
async and the sync runner share it. A directory belongs to one runner and is replaced piece by piece, so
that threads may read it while one of them looks.
"""

from __future__ import annotations

import random
import time
from binascii import crc_hqx
from collections.abc import Generator
from typing import Any, NamedTuple

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.faults import ErrorReply, Meaning, Step, read

__all__ = ["Directory", "FixedDirectory", "Question", "directory_of", "slot_of"]

SLOTS = 16_384
#: A moved slot is noted at once; the whole map is asked for again at most this often (seconds).
_REDRAW = 1.0
#: A server that has not answered is asked last for so long (seconds).
_SILENT_FOR = 30.0


class Question(NamedTuple):
    """A command for a certain server, and whether that one is a sentinel."""

    node: Node
    command: tuple[str, ...]
    sentinel: bool = False


Look = Generator[Question, Any, None]  # is sent the reply, or the StoreError that came instead


class Directory:
    """One server: it is in charge of everything, always."""

    def __init__(self, address: Address) -> None:
        self.address = address
        #: True: `look` before the next call.
        self.vague = False
        #: Counts the looks, so that what failed before the last one raises no new doubt.
        self.edition = 0

    def node_of(self, key: bytes | None) -> Node | None:
        """Who is in charge of this key (None: of anything)."""
        return self.address.nodes[0]

    def masters(self) -> list[Node]:
        return [self.address.nodes[0]]

    def doubt(self, edition: int, silent: Node | None = None) -> None:
        """Something that this edition said has not held; `silent`: this server does not answer."""

    def moved(self, meaning: Meaning, by: Node) -> Node:
        """A server says that another one is in charge: which."""
        return self.address.nodes[0]

    def look(self) -> Look:
        return
        yield


class SentinelDirectory(Directory):
    """The master of a name, as the sentinels see it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.vague = True
        self._master: Node | None = None
        self._sentinels = list(address.nodes)

    def node_of(self, key: bytes | None) -> Node | None:
        return self._master

    def masters(self) -> list[Node]:
        return [self._master] if self._master else []

    def doubt(self, edition: int, silent: Node | None = None) -> None:
        if edition == self.edition:
            self.vague = True

    def moved(self, meaning: Meaning, by: Node) -> Node:
        return by

    def look(self) -> Look:
        name, unknown, last = self.address.master, 0, None
        for sentinel in list(self._sentinels):
            command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            reply = yield Question(sentinel, command, sentinel=True)
            if isinstance(reply, list):
                self._found(Node(reply[0].decode(), int(reply[1])), sentinel)
                return
            unknown += reply is None
            last = self._trouble(reply, sentinel) or last
        if unknown == len(self._sentinels):
            raise StoreError(
                f"{self.address.url}: its sentinels know no master called {name!r}; "
                "`SENTINEL MASTERS` there lists those that they know"
            )
        raise last or StoreUnavailable(f"{self.address.url}: no sentinel knows its master now")

    def _found(self, master: Node, by: Node) -> None:
        # the next look begins with another sentinel: this one's view may have been the old one
        self._sentinels.remove(by)
        self._sentinels.append(by)
        self._master = master
        self.edition += 1
        self.vague = False

    def _trouble(self, reply: Any, sentinel: Node) -> StoreError | None:
        if not isinstance(reply, ErrorReply):
            return _passing(reply)
        text = str(reply)
        if "unknown command" in text.lower():
            raise StoreError(
                f"redis://{sentinel} is no sentinel but a Redis server: use redis://{sentinel}, "
                "or give the sentinels' ports (26379)"
            )
        meaning = read(text, f"the sentinel {sentinel}")
        if meaning.step is Step.FINAL and meaning.error is not None and "IDONTKNOW" not in text:
            raise meaning.error
        return meaning.error


class ClusterDirectory(Directory):
    """The slot map of a cluster, as any of its nodes tells it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.vague = True
        self._slots: list[Node | None] = [None] * SLOTS
        self._known: list[Node] = []
        #: Servers that have not answered of late, since when (monotonic).
        self._silent: dict[Node, float] = {}
        self._drawn_at = 0.0

    def node_of(self, key: bytes | None) -> Node | None:
        if key is None:
            known = [node for node in self._known if not self._is_silent(node)] or self._known
            return random.choice(known) if known else None  # noqa: S311 (any server will do, no secret)
        return self._slots[slot_of(key)]

    def masters(self) -> list[Node]:
        return list(self._known)

    def doubt(self, edition: int, silent: Node | None = None) -> None:
        if silent is not None:
            self._silent[silent] = time.monotonic()
        if edition == self.edition:
            self.vague = True

    def moved(self, meaning: Meaning, by: Node) -> Node:
        host, port = meaning.node
        node = Node(host or by.host, port)  # no host: another port of the same one
        if meaning.step is Step.MOVED:
            self._slots[meaning.slot] = node
            if time.monotonic() - self._drawn_at > _REDRAW:
                self.vague = True
        return node

    def look(self) -> Look:
        known = random.sample(self._known, len(self._known))
        known.sort(key=self._is_silent)  # or everybody would wait for one that is away
        last: StoreError | None = None
        for node in dict.fromkeys([*known, *self.address.nodes]):
            reply = yield Question(node, ("CLUSTER", "SLOTS"))
            if isinstance(reply, list):
                self._silent.pop(node, None)
                self._draw(reply, node)
                return
            self._silent[node] = time.monotonic()
            if isinstance(reply, ErrorReply):
                last = self._refused(reply, node)
            else:
                last = _passing(reply) or last
        raise last or StoreUnavailable(f"{self.address.url}: no node of the cluster answers")

    def _draw(self, reply: list[Any], by: Node) -> None:
        slots: list[Node | None] = [None] * SLOTS
        masters: dict[Node, None] = {}
        for first, last, master, *_ in reply:
            host = (master[0] or b"").decode()
            node = Node(by.host if host in ("", "?") else host, int(master[1]))
            slots[first : last + 1] = [node] * (last + 1 - first)
            masters[node] = None
        self._slots, self._known = slots, list(masters)
        self._drawn_at = time.monotonic()
        self.edition += 1
        self.vague = False

    def _is_silent(self, node: Node) -> bool:
        return time.monotonic() - self._silent.get(node, float("-inf")) < _SILENT_FOR

    def _refused(self, reply: ErrorReply, node: Node) -> StoreError | None:
        text = str(reply)
        if "cluster support disabled" in text:
            raise StoreError(f"{self.address.url} is not a cluster: use {self.address.as_mode('single')}")
        meaning = read(text, self.address.at(node))
        if meaning.step is Step.FINAL and meaning.error is not None:
            raise meaning.error
        return meaning.error


def _passing(reply: Any) -> StoreUnavailable | None:
    """A server that is away is one thing to know; what it will never do ends the look."""
    if isinstance(reply, StoreError) and not isinstance(reply, StoreUnavailable):
        raise reply
    return reply if isinstance(reply, StoreUnavailable) else None


class FixedDirectory(Directory):
    """One of several masters, whoever is in charge."""

    def __init__(self, address: Address, node: Node) -> None:
        super().__init__(address)
        self._node = node

    def node_of(self, key: bytes | None) -> Node | None:
        return self._node


def directory_of(address: Address) -> Directory:
    match address.mode:
        case "sentinel":
            return SentinelDirectory(address)
        case "cluster":
            return ClusterDirectory(address)
        case "single":
            return Directory(address)


def slot_of(key: bytes) -> int:
    """A key's hash slot; only what is between the first braces counts, if anything is."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS
