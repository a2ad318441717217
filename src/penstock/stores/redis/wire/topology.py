"""The topology: which server is in charge of a key. It is fixed, asked of sentinels, or a cluster's slot map.

Nothing here does I/O: `refresh` is a generator that yields a `Query` and is sent its reply, so that the async
and the sync runner share it. A topology belongs to one runner; it is updated piece by piece, so that threads
may read it while one of them refreshes it.
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

SLOTS = 16_384
#: Least seconds between two refreshes of the whole slot map; a moved slot is noted at once.
_REFRESH_PAUSE = 1.0
#: For how many seconds a server that has not answered is asked last.
_SILENT_FOR = 30.0


class Query(NamedTuple):
    """A command for this server, and whether it is a sentinel."""

    node: Node
    command: tuple[str, ...]
    sentinel: bool = False


Refresh = Generator[Query, Any, None]  # is sent the reply, or a StoreError


class Topology:
    """The topology of a single server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        #: True: `refresh` before the next call.
        self.stale = False
        #: Counts the refreshes, so that a failure from before the last one does not cause another.
        self.edition = 0

    def node_of(self, redis_key: bytes | None) -> Node | None:
        """The server in charge of this key; any server for None."""
        return self.address.nodes[0]

    def masters(self) -> list[Node]:
        return [self.address.nodes[0]]

    def invalidate(self, edition: int, silent: Node | None = None) -> None:
        """Mark as stale if this edition is the current one; `silent` names a server that does not answer."""

    def moved(self, meaning: Meaning, by: Node) -> Node:
        """The server that a redirect names."""
        return self.address.nodes[0]

    def refresh(self) -> Refresh:
        return
        yield


class SentinelTopology(Topology):
    """The master of a name, as the sentinels report it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.stale = True
        self._master: Node | None = None
        self._sentinels = list(address.nodes)

    def node_of(self, redis_key: bytes | None) -> Node | None:
        return self._master

    def masters(self) -> list[Node]:
        return [self._master] if self._master else []

    def invalidate(self, edition: int, silent: Node | None = None) -> None:
        if edition == self.edition:
            self.stale = True

    def moved(self, meaning: Meaning, by: Node) -> Node:
        return by

    def refresh(self) -> Refresh:
        name, unknown, last = self.address.master, 0, None
        for sentinel in list(self._sentinels):
            command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            reply = yield Query(sentinel, command, sentinel=True)
            if isinstance(reply, list):
                self._found(Node(reply[0].decode(), int(reply[1])), sentinel)
                return
            unknown += reply is None
            last = self._error_of(reply, sentinel) or last
        if unknown == len(self._sentinels):
            raise StoreError(
                f"{self.address.url}: its sentinels know no master called {name!r}; "
                "`SENTINEL MASTERS` there lists those that they know"
            )
        raise last or StoreUnavailable(f"{self.address.url}: no sentinel knows its master now")

    def _found(self, master: Node, by: Node) -> None:
        # the next refresh begins with another sentinel, as this one's view may be outdated
        self._sentinels.remove(by)
        self._sentinels.append(by)
        self._master = master
        self.edition += 1
        self.stale = False

    def _error_of(self, reply: Any, sentinel: Node) -> StoreError | None:
        if not isinstance(reply, ErrorReply):
            return _unavailable_or_raise(reply)
        text = str(reply)
        if "unknown command" in text.lower():
            raise StoreError(
                f"redis://{sentinel} is not a sentinel but a Redis server: use redis://{sentinel}, "
                "or give the sentinels' ports (26379)"
            )
        meaning = read(text, f"the sentinel {sentinel}")
        if meaning.step is Step.FINAL and meaning.error is not None and "IDONTKNOW" not in text:
            raise meaning.error
        return meaning.error


class ClusterTopology(Topology):
    """The slot map of a cluster, as any of its nodes reports it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.stale = True
        self._slots: list[Node | None] = [None] * SLOTS
        self._known: list[Node] = []
        #: Servers that have not answered, and since when (monotonic).
        self._silent: dict[Node, float] = {}
        self._refreshed_at = 0.0

    def node_of(self, redis_key: bytes | None) -> Node | None:
        if redis_key is None:
            known = [node for node in self._known if not self._is_silent(node)] or self._known
            return random.choice(known) if known else None  # noqa: S311 (any server will do, no secret)
        return self._slots[slot_of(redis_key)]

    def masters(self) -> list[Node]:
        return list(self._known)

    def invalidate(self, edition: int, silent: Node | None = None) -> None:
        if silent is not None:
            self._silent[silent] = time.monotonic()
        if edition == self.edition:
            self.stale = True

    def moved(self, meaning: Meaning, by: Node) -> Node:
        host, port = meaning.node
        node = Node(host or by.host, port)  # no host: another port of the same one
        if meaning.step is Step.MOVED:
            self._slots[meaning.slot] = node
            if time.monotonic() - self._refreshed_at > _REFRESH_PAUSE:
                self.stale = True
        return node

    def refresh(self) -> Refresh:
        known = random.sample(self._known, len(self._known))
        known.sort(key=self._is_silent)  # else every refresh would wait for an unreachable node
        last: StoreError | None = None
        for node in dict.fromkeys([*known, *self.address.nodes]):
            reply = yield Query(node, ("CLUSTER", "SLOTS"))
            if isinstance(reply, list):
                self._silent.pop(node, None)
                self._read_slots(reply, node)
                return
            self._silent[node] = time.monotonic()
            if isinstance(reply, ErrorReply):
                last = self._refused(reply, node)
            else:
                last = _unavailable_or_raise(reply) or last
        raise last or StoreUnavailable(f"{self.address.url}: no node of the cluster answers")

    def _read_slots(self, reply: list[Any], by: Node) -> None:
        slots: list[Node | None] = [None] * SLOTS
        masters: dict[Node, None] = {}
        for first, last, master, *_ in reply:
            host = (master[0] or b"").decode()
            node = Node(by.host if host in ("", "?") else host, int(master[1]))
            slots[first : last + 1] = [node] * (last + 1 - first)
            masters[node] = None
        self._slots, self._known = slots, list(masters)
        self._refreshed_at = time.monotonic()
        self.edition += 1
        self.stale = False

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


def _unavailable_or_raise(reply: Any) -> StoreUnavailable | None:
    """Return an outage of a server; raise an error that is final."""
    if isinstance(reply, StoreError) and not isinstance(reply, StoreUnavailable):
        raise reply
    return reply if isinstance(reply, StoreUnavailable) else None


class FixedTopology(Topology):
    """The topology for calls to one given server."""

    def __init__(self, address: Address, node: Node) -> None:
        super().__init__(address)
        self._node = node

    def node_of(self, redis_key: bytes | None) -> Node | None:
        return self._node


def topology_of(address: Address) -> Topology:
    match address.mode:
        case "sentinel":
            return SentinelTopology(address)
        case "cluster":
            return ClusterTopology(address)
        case "single":
            return Topology(address)


def slot_of(redis_key: bytes) -> int:
    """The hash slot of a key, or of the text between its first braces."""
    start = redis_key.find(b"{")
    if start >= 0:
        end = redis_key.find(b"}", start + 1)
        if end > start + 1:
            redis_key = redis_key[start + 1 : end]
    return crc_hqx(redis_key, 0) % SLOTS
