"""The sync runner: sends calls and returns their answers, for any number of threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Mode, Node
from penstock.stores.redis.wire.calls import LARGE, Call, NodeRequest, RequestBatch, command_of, encoded
from penstock.stores.redis.wire.connect import Kind, OnConnect
from penstock.stores.redis.wire.faults import ErrorReply, Lost, Unsent
from penstock.stores.redis.wire.sync_connection import (
    ConnectionPool,
    SyncConnection,
    SyncListener,
    open_sync_connection,
)
from penstock.stores.redis.wire.topology import Query, Topology, topology_of


class SyncRunner:
    """Runs calls from any number of threads; each takes a connection of the pool and puts it back."""

    def __init__(self, address: Address, *, on_connect: OnConnect | None = None) -> None:
        self._address = address
        self._on_connect = on_connect
        self._topology: Topology = topology_of(address)
        self._pid = os.getpid()
        self._pool = ConnectionPool()
        self._refreshing = threading.RLock()  # see forks.lock

    @property
    def mode(self) -> Mode:
        return self._address.mode

    @property
    def address(self) -> Address:
        return self._address

    def run(self, calls: Sequence[Call], *, within: int | None = None) -> list[Any]:
        """As AsyncRunner.run."""
        if self._pid != os.getpid():
            self._after_fork()
        if len(calls) == 1 and not (
            self._topology.stale or calls[0].replicas or calls[0].brief or calls[0].run
        ):
            return self._run_one(calls, within)
        return self._run_batch(RequestBatch(calls, self._topology, self._address, within))

    def _run_one(self, calls: Sequence[Call], within: int | None) -> list[Any]:
        """As `run`, for one call of the usual kind: it needs a batch only if something goes wrong."""
        (call,) = calls
        edition = self._topology.edition
        node = self._topology.node_of(call.redis_keys[0] if call.redis_keys else None)
        payload = command_of(call)
        if node is None or len(payload) > LARGE:
            return self._run_batch(RequestBatch(calls, self._topology, self._address, within))
        until = time.monotonic() + (self._address.timeout if within is None else within) / 1000
        outcome = self._outcome(node, "calls", payload, 1, until, until)
        if isinstance(outcome, list) and not isinstance(outcome[0], ErrorReply):
            return outcome
        batch = RequestBatch(calls, self._topology, self._address, within)
        batch.until = batch.connect_until = until  # the first try counts
        self._report(batch.request_to(node, edition), outcome)
        if seconds := batch.pause():
            time.sleep(seconds)
        return self._run_batch(batch)

    def _run_batch(self, batch: RequestBatch) -> list[Any]:
        while not batch.done:
            try:
                if self._topology.stale:
                    self._refresh(batch.until)
            except StoreError as error:
                batch.on_refresh_failed(error)
            else:
                for request in batch.requests():
                    self._send(request)
            if not batch.done and (seconds := batch.pause()):
                time.sleep(seconds)
        return batch.answers

    def listener(self, channel: bytes) -> SyncListener:
        """A context manager whose `receive(seconds)` returns the messages of the channel."""
        if self._pid != os.getpid():
            self._after_fork()
        return SyncListener(self._address, channel, self._take_listening, self._keep_listening)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their calls are answered.

        A later call opens new ones.
        """
        pool, self._pool = self._pool, ConnectionPool()
        pool.close()

    def _send(self, request: NodeRequest) -> None:
        payload, count = request.encoded()
        limits = (request.until, request.connect_until)
        run_bound = request if request.run_bound else None
        self._report(request, self._outcome(request.node, request.kind, payload, count, *limits, run_bound))

    def _report(self, request: NodeRequest, outcome: list[Any] | StoreError | Lost) -> None:
        if isinstance(outcome, Lost):
            request.on_lost(str(outcome), outcome.replies)
        elif isinstance(outcome, StoreError):
            request.on_unsent(outcome)
        else:
            request.on_replies(outcome)
            if request.drop_connection:
                self._pool.drop(request.node)

    def _outcome(
        self,
        node: Node,
        kind: Kind,
        payload: bytes,
        count: int,
        until: float,
        connect_until: float,
        run_bound: NodeRequest | None = None,
    ) -> list[Any] | StoreError | Lost:
        """The replies; a StoreError if nothing was sent, Lost if some replies are missing."""
        try:
            return self._ask(node, kind, payload, count, until, connect_until, run_bound)
        except (StoreError, Lost) as error:
            return error

    def _ask(
        self,
        node: Node,
        kind: Kind,
        payload: bytes,
        count: int,
        until: float,
        connect_until: float,
        run_bound: NodeRequest | None = None,
    ) -> list[Any]:
        """Send this payload on a connection of the pool. Raises Lost, and StoreError if nothing was sent."""
        pool = self._pool
        pool.enter(until)
        try:
            while True:
                kept = pool.take(node, kind)
                connection = kept or self._open(node, kind, connect_until)
                healthy = False
                try:
                    if run_bound is not None:
                        run_bound.check_run(connection.server)
                    replies = connection.ask(payload, count, until, self._patience(kind))
                    healthy = True
                except Unsent as unsent:
                    if kept is not None:
                        continue  # it was closed while idle: try another
                    raise StoreUnavailable(f"{self._address.at(node)}: {unsent}") from None
                finally:
                    if not healthy:
                        connection.close()
                pool.put(node, kind, connection)
                return replies
        finally:
            pool.leave()

    def _patience(self, kind: Kind) -> float:
        waits = self._address.wait_timeout if kind == "waits" else 0
        return (self._address.timeout / 2 + waits) / 1000

    def _open(self, node: Node, kind: Kind, until: float) -> SyncConnection:
        timeout = min(self._address.connect_timeout / 1000, max(until - time.monotonic(), 0.05))
        connection = open_sync_connection(self._address, node, kind, timeout)
        if self._on_connect is not None and connection.server is not None and kind != "sentinel":
            self._on_connect(connection.server)
        return connection

    def _keep_listening(self, connection: SyncConnection) -> None:
        if connection.server is not None:
            self._pool.put(connection.server.node, "messages", connection)

    def _take_listening(self, until: float, fresh: bool) -> tuple[SyncConnection, bool]:
        """A connection for messages, and whether it is new."""
        if self._topology.stale:
            self._refresh(until)
        edition = self._topology.edition
        node = self._topology.node_of(None)
        try:
            if node is None:
                raise StoreUnavailable(f"{self._address.url}: there is no master now")
            kept = None if fresh else self._pool.take(node, "messages")
            return kept or self._open(node, "messages", until), kept is None
        except StoreUnavailable:
            self._topology.invalidate(edition, node)
            raise

    def _refresh(self, until: float) -> None:
        """Refresh the topology. Raises StoreError."""
        with self._refreshing:
            if not self._topology.stale:
                return
            refresh = self._topology.refresh()
            try:
                query = next(refresh)
                while True:
                    query = refresh.send(self._query(query, until))
            except StopIteration:
                return

    def _query(self, query: Query, until: float) -> Any:
        limit = min(until, time.monotonic() + self._address.connect_timeout / 1000)
        kind: Kind = "sentinel" if query.sentinel else "calls"
        try:
            return self._ask(query.node, kind, encoded(*query.command), 1, limit, limit)[0]
        except StoreError as error:
            return error
        except Lost as lost:
            return StoreUnavailable(f"{query.node}: {lost}")

    def _after_fork(self) -> None:
        self._pool.close()  # a socket closed in the child stays open in the parent
        self._pool = ConnectionPool()
        self._refreshing = threading.RLock()
        self._pid = os.getpid()
