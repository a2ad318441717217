"""Calls to Redis, and the batch of one `AsyncRunner.run` or `SyncRunner.run`: which call goes where, what is
sent again, and when to give up.

Nothing here does I/O; the async and the sync runner both run this loop:

    while not batch.done:
        refresh the topology if it is stale
        for request in batch.requests():
            send it, then call request.on_replies, request.on_lost or request.on_unsent
        wait for batch.pause() seconds

- MOVED: the slot map is corrected (`Topology.moved`), and the call is sent again at once. ASK: only this call
  goes to the other node.
- READONLY, CLUSTERDOWN, a lost connection: the topology is stale, and is refreshed before the next round. A
  call whose reply was lost is sent again only if it is `repeatable`; otherwise it fails with ReplyLost.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.formats import format_ms
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.connect import Kind, Server
from penstock.stores.redis.wire.faults import ErrorReply, Meaning, ReplyLost, ServerRestarted, Step, read
from penstock.stores.redis.wire.topology import Topology


class Script:
    """A Lua script, and the digest under which Redis caches it."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class ServerRun:
    """The run of a server, from its start to its end, to which a call was sent; others can depend on it."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = ""


class Call(NamedTuple):
    """One script with its keys and arguments, or (`ask`) a plain command.

    - `redis_keys[0]`: its slot determines the node in a Cluster.
    - `repeatable`: the call may be sent again if its reply was lost, although it may have been executed.
    - `replicas` > 0: the answer is an `Acked`, with the number of replicas that acknowledged the call before
      `wait_timeout` ended.
    - `brief`: the call is tried, and a connection is waited for, for a second at most, because other calls do
      not depend on it.
    - `run`: a repeatable call notes here which run of the server it was sent to. One that is not repeatable
      is sent to that run only, and otherwise answered with `ServerRestarted`: a server that restarts, or a
      replica that replaces it, may have lost what the first call has read.
    """

    script: Script | None
    redis_keys: tuple[bytes, ...] = ()
    args: Sequence[bytes | str | int] = ()
    repeatable: bool = True
    replicas: int = 0
    ask: tuple[bytes | str | int, ...] = ()
    brief: bool = False
    run: ServerRun | None = None


class Acked(NamedTuple):
    """The reply of a call, and the number of replicas that acknowledged it."""

    reply: Any
    replicas: int


_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # its own types say "exactly one argument"


def encoded(*command: bytes | str | int) -> bytes:
    return _pack(command)


def encoded_all(commands: list[tuple[str, ...]]) -> bytes:
    return b"".join(map(_pack, commands))


# ── the batch of one `run` ──


#: How often a call is redirected, or its script loaded, before there are pauses between the tries.
_EAGER = 4
#: How long `brief` calls are tried (seconds).
_BRIEF = 1.0
#: A repeated try is not begun if less time (seconds) is left: its reply could not be waited for, and a call
#: that was certainly not executed would become one that may have been.
_SHORTEST_TRY = 0.01
#: A larger request loads its scripts itself (bytes).
LARGE = 262_144
_ASKING = encoded("ASKING")


def backoff(tries: int, *, first: float = 0.02, most: float = 0.5) -> float:
    """Seconds to wait before the next try, with jitter, so that many clients do not retry at once."""
    return float(min(most, first * 2 ** min(tries, 16)) * (0.5 + random.random() / 2))  # noqa: S311 (jitter, no secret)


class _Item:
    """One call, and its progress so far."""

    __slots__ = ("asking", "call", "index", "last_error", "load", "maybe_executed")

    def __init__(self, index: int, call: Call) -> None:
        self.index = index
        self.call = call
        self.load = False  # its script must be loaded first
        self.asking: Node | None = None  # send it to this node, once
        self.maybe_executed = False  # it was sent, and its reply was lost
        self.last_error: StoreError | None = None


class RequestBatch:
    """The calls of one `run`. Once `done`, `answers` has one answer per call, in order."""

    def __init__(
        self, calls: Sequence[Call], topology: Topology, address: Address, within: int | None
    ) -> None:
        self.answers: list[Any] = [None] * len(calls)
        self.within = address.timeout if within is None else within
        started = time.monotonic()
        self.until = started + self.within / 1000
        self._brief = waits = False
        self._todo: list[_Item] = []
        for call in calls:
            self._todo.append(_Item(len(self._todo), call))
            waits = waits or call.replicas > 0
            self._brief = self._brief or call.brief
        if waits:
            self.until += address.wait_timeout / 1000
        #: Until when to wait for a connection, and until when to try brief calls.
        self.connect_until = min(self.until, started + _BRIEF) if self._brief else self.until
        self._topology = topology
        self._address = address
        self._tries = 0
        self._no_pause = False  # the next try is expected to work: no pause before it
        self._eager_tries = 0

    @property
    def done(self) -> bool:
        return not self._todo

    def requests(self) -> list[NodeRequest]:
        """The requests to send now, one per connection, with the calls in order."""
        if self._tries and self.until - time.monotonic() < _SHORTEST_TRY:  # the pause took longer
            self._give_up(self._todo)
        todo, self._todo = self._todo, []
        node_of = self._topology.node_of
        requests: dict[tuple[Node, Kind], NodeRequest] = {}
        self._no_pause = True
        for item in todo:
            call = item.call
            node = item.asking or node_of(call.redis_keys[0] if call.redis_keys else None)
            if node is None:
                self._topology.invalidate(self._topology.edition)
                self._retry_later(
                    item, StoreUnavailable(f"{self._address.url}: there is no master for this key now")
                )
                continue
            place: tuple[Node, Kind] = (node, "waits" if call.replicas else "calls")
            request = requests.get(place)
            if request is None:
                request = requests[place] = NodeRequest(self, *place, self._topology.edition)
            request.items.append(item)
            if call.run is not None:
                request.run_bound = True
        return list(requests.values())

    def request_to(self, node: Node, edition: int) -> NodeRequest:
        """The request with all calls, which the runner has sent to this node already."""
        request = NodeRequest(self, node, "calls", edition)
        request.items, self._todo = self._todo, []
        self._no_pause = True
        return request

    def pause(self) -> float:
        """Seconds to wait before the next round. At the deadline, open calls get their errors as answers."""
        if not self._todo:
            return 0.0
        self._todo.sort(key=lambda item: item.index)
        left = self.until - time.monotonic()
        if self._no_pause and self._eager_tries < _EAGER and left > 0:
            self._eager_tries += 1
            return 0.0
        seconds = backoff(self._tries)
        self._tries += 1
        if self._brief and self.connect_until - time.monotonic() <= seconds:
            self._give_up([item for item in self._todo if item.call.brief])
        if left <= seconds:
            self._give_up(self._todo)
        return seconds if self._todo else 0.0

    def on_refresh_failed(self, error: StoreError) -> None:
        """The topology could not be refreshed."""
        self._no_pause = False
        for item in self._todo:
            item.last_error = error
        if not isinstance(error, StoreUnavailable):
            self._give_up(self._todo)

    def _give_up(self, on: list[_Item]) -> None:
        self._todo = [item for item in self._todo if item not in on]
        for item in on:
            last_error = item.last_error or StoreUnavailable(f"{self._address.url} does not answer")
            if isinstance(last_error, StoreUnavailable):
                after = 1000 * _BRIEF if item.call.brief else self.within
                last_error = type(last_error)(
                    f"{last_error}; gave up after {format_ms(min(int(after), self.within))}"
                )
            self._fail(item, last_error)

    def _fail(self, item: _Item, error: StoreError) -> None:
        if item.maybe_executed and not isinstance(error, ReplyLost):
            error = ReplyLost(f"{error} (it was sent before, and may have been executed)")
        self.answers[item.index] = error

    # ── results of a request ──

    def _on_reply(self, item: _Item, reply: Any, request: NodeRequest, replicas: int) -> None:
        item.asking = None
        if not isinstance(reply, ErrorReply):
            self.answers[item.index] = Acked(reply, replicas) if item.call.replicas else reply
            return
        meaning = read(str(reply), self._address.at(request.node))
        match meaning.step:
            case Step.LOAD if item.call.script is not None:
                item.load = True
                self._retry_now(item, meaning)
            case Step.MOVED:
                self._topology.moved(meaning, request.node)
                self._retry_now(item, meaning)
            case Step.ASK:
                item.asking = self._topology.moved(meaning, request.node)
                self._retry_now(item, meaning)
            case Step.ELSEWHERE:
                self._topology.invalidate(request.edition)
                request.drop_connection = True
                self._retry_later(item, meaning.error)
            case Step.LATER:
                self._retry_later(item, meaning.error)
            case _:
                assert meaning.error is not None
                self._fail(item, meaning.error)

    def _retry_now(self, item: _Item, meaning: Meaning) -> None:
        item.last_error = meaning.error
        if self._eager_tries < _EAGER:  # the server has answered: the time so far does not count
            self.until = max(self.until, time.monotonic() + self.within / 1000)
        self._todo.append(item)

    def _retry_later(self, item: _Item, error: StoreError | None) -> None:
        item.last_error = error
        self._no_pause = False
        self._todo.append(item)

    def _on_lost(self, item: _Item, error: StoreError) -> None:
        item.maybe_executed = True
        item.asking = None
        if item.call.repeatable:
            self._no_pause = self._no_pause and self._tries == 0
            item.last_error = error
            self._todo.append(item)
        else:
            self._fail(item, ReplyLost(f"{error}; it may have been executed"))

    def _on_unsent(self, item: _Item, error: StoreError) -> None:
        item.asking = None
        if isinstance(error, StoreUnavailable):
            self._retry_later(item, error)
        else:
            self._fail(item, error)


class NodeRequest:
    """The calls that go to one server in one write, and the handling of their replies."""

    __slots__ = (
        "_batch",
        "_scripts",
        "_waits",
        "drop_connection",
        "edition",
        "items",
        "kind",
        "node",
        "run_bound",
    )

    def __init__(self, batch: RequestBatch, node: Node, kind: Kind, edition: int) -> None:
        self.node = node
        self.kind: Kind = kind
        self.edition = edition
        self.items: list[_Item] = []
        self.drop_connection = False  # the runner drops its connections to this server: its role has changed
        self.run_bound = False  # a call has a `run`: the runner calls `check_run` before it sends
        self._batch = batch
        self._scripts = 0
        self._waits = 0

    @property
    def until(self) -> float:
        return self._batch.until

    @property
    def connect_until(self) -> float:
        return self._batch.connect_until

    def check_run(self, server: Server | None) -> None:
        """Note the run of the server to which the calls go. Raises ServerRestarted if one needs another."""
        run_id = "" if server is None else server.run_id
        for call in (item.call for item in self.items):
            if call.run is None:
                continue
            if call.repeatable:
                call.run.id = run_id
            elif call.run.id != run_id:
                where = self._batch._address.at(self.node)
                raise ServerRestarted(f"{where} has restarted, or another server has replaced it")

    def encoded(self) -> tuple[bytes, int]:
        """The bytes to send, and the number of replies to expect."""
        items = self.items
        commands = [command_of(item.call) for item in items]
        if sum(map(len, commands)) > LARGE:  # after NOSCRIPT it would have to be sent again
            for item in items:
                item.load = item.call.script is not None
        elif self._is_plain():
            return commands[0], 1
        parts: list[bytes] = []
        texts = {item.call.script.text for item in items if item.load and item.call.script}
        self._scripts = len(texts)
        parts += [encoded("SCRIPT", "LOAD", text) for text in texts]
        for item, command in zip(items, commands, strict=True):
            if item.asking is not None:
                parts.append(_ASKING)
            parts.append(command)
        if self.kind == "waits":
            # one WAIT for all: its answer for the last write holds for those before it
            replicas = max(item.call.replicas for item in items)
            parts.append(encoded("WAIT", replicas, self._batch._address.wait_timeout))
            self._waits = 1
        return b"".join(parts), len(parts)

    def _is_plain(self) -> bool:
        """Whether this is one call without anything around it: by far the most are."""
        item = self.items[0]
        return len(self.items) == 1 and not item.load and item.asking is None and self.kind == "calls"

    def on_replies(self, replies: list[Any]) -> None:
        """Give each call its reply."""
        batch, items = self._batch, self.items
        if len(replies) == 1:
            batch._on_reply(items[0], replies[0], self, 0)
            return
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
            batch._on_reply(item, reply, self, replicas)

    def on_lost(self, why: str, replies: list[Any]) -> None:
        """Handle the loss of the connection after these replies."""
        batch = self._batch
        batch._topology.invalidate(self.edition, self.node)
        error = StoreUnavailable(f"{batch._address.at(self.node)}: {why}")
        at = self._scripts
        loaded = not any(isinstance(reply, ErrorReply) for reply in replies[:at])
        for item in self.items:
            at += item.asking is not None
            if at < len(replies) and (loaded or not item.load):
                # the number of replicas is unknown, and another WAIT could not find it out
                batch._on_reply(item, replies[at], self, 0)
            else:
                batch._on_lost(item, error)
            at += 1

    def on_unsent(self, error: StoreError) -> None:
        """Handle a request of which nothing was written."""
        self._batch._topology.invalidate(self.edition, self.node)
        for item in self.items:
            self._batch._on_unsent(item, error)


def command_of(call: Call) -> bytes:
    """Return the bytes of a call."""
    if call.script is None:
        return encoded(*call.ask)
    return encoded("EVALSHA", call.script.sha, len(call.redis_keys), *call.redis_keys, *call.args)
