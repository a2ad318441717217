"""Calls go out and answers come back, from any number of threads: the `SyncRunner`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Mode, Node
from penstock.stores.redis.wire.calls import Call
from penstock.stores.redis.wire.encoding import packed
from penstock.stores.redis.wire.faults import Lost, Unsent
from penstock.stores.redis.wire.handshake import Kind, OnConnect
from penstock.stores.redis.wire.listener import SyncListener
from penstock.stores.redis.wire.request_batch import Errand, Parcel
from penstock.stores.redis.wire.sync_connection import ConnectionPool, Line, open_line
from penstock.stores.redis.wire.topology import Directory, Question, directory_of

__all__ = ["SyncRunner"]


class SyncRunner:
    """For any number of threads: each call takes a line of the pool and puts it back."""

    def __init__(self, address: Address, *, on_connect: OnConnect | None = None) -> None:
        self._address = address
        self._on_connect = on_connect
        self._directory: Directory = directory_of(address)
        self._pid = os.getpid()
        self._pool = ConnectionPool()
        self._looking = threading.Lock()

    @property
    def mode(self) -> Mode:
        return self._address.mode

    @property
    def address(self) -> Address:
        return self._address

    def run(self, calls: Sequence[Call], *, within: int | None = None) -> list[Any]:
        """As AsyncRunner.run."""
        if self._pid != os.getpid():
            self._forked()
        errand = Errand(calls, self._directory, self._address, within)
        while not errand.done:
            try:
                if self._directory.vague:
                    self._look(errand.until)
            except StoreError as error:
                errand.cannot_look(error)
            else:
                for parcel in errand.parcels():
                    self._deliver(parcel)
            if not errand.done and (seconds := errand.pause()):
                time.sleep(seconds)
        return errand.answers

    def listener(self, channel: bytes) -> SyncListener:
        """`with` it; inside, `hear(seconds)` gives the messages of the channel."""
        if self._pid != os.getpid():
            self._forked()
        return SyncListener(self._address, channel, self._take_ear, self._keep_ear)

    def close(self) -> None:
        """Let go of the idle connections; those in use follow when their calls are answered.

        A later call opens new ones.
        """
        pool, self._pool = self._pool, ConnectionPool()
        pool.close()

    def _deliver(self, parcel: Parcel) -> None:
        try:
            payload, count = parcel.packed()
            limits = (parcel.until, parcel.connect_until)
            replies = self._ask(parcel.node, parcel.kind, payload, count, *limits)
        except StoreError as error:
            parcel.unsent(error)
        except Lost as lost:
            parcel.lost(str(lost), lost.replies)
        else:
            parcel.came(replies)
            if parcel.shun:
                self._pool.drop(parcel.node)

    def _ask(
        self, node: Node, kind: Kind, payload: bytes, count: int, until: float, connect_until: float
    ) -> list[Any]:
        """One question on one line of the pool. Raises Lost, and StoreError if nothing was sent."""
        pool = self._pool
        pool.enter(until)
        try:
            while True:
                kept = pool.take(node, kind)
                line = kept or self._open(node, kind, connect_until)
                healthy = False
                try:
                    replies = line.ask(payload, count, until, self._patience(kind))
                    healthy = True
                except Unsent as unsent:
                    if kept is not None:
                        continue  # it died while it was idle: another, or a new one
                    raise StoreUnavailable(f"{self._address.at(node)}: {unsent}") from None
                finally:
                    if not healthy:
                        line.close()
                pool.put(node, kind, line)
                return replies
        finally:
            pool.leave()

    def _patience(self, kind: Kind) -> float:
        waits = self._address.wait_timeout if kind == "waits" else 0
        return (self._address.timeout / 2 + waits) / 1000

    def _open(self, node: Node, kind: Kind, until: float) -> Line:
        timeout = min(self._address.connect_timeout / 1000, max(until - time.monotonic(), 0.05))
        line = open_line(self._address, node, kind, timeout)
        if self._on_connect is not None and line.server is not None and kind != "sentinel":
            self._on_connect(line.server)
        return line

    def _keep_ear(self, line: Line) -> None:
        if line.server is not None:
            self._pool.put(line.server.node, "messages", line)

    def _take_ear(self, until: float, fresh: bool) -> tuple[Line, bool]:
        """A listening line, and whether it is a new one."""
        if self._directory.vague:
            self._look(until)
        edition = self._directory.edition
        node = self._directory.node_of(None)
        try:
            if node is None:
                raise StoreUnavailable(f"{self._address.url}: nobody is in charge now")
            kept = None if fresh else self._pool.take(node, "messages")
            return kept or self._open(node, "messages", until), kept is None
        except StoreUnavailable:
            self._directory.doubt(edition, node)
            raise

    def _look(self, until: float) -> None:
        """Find out who is in charge. Raises StoreError."""
        with self._looking:
            if not self._directory.vague:
                return
            look = self._directory.look()
            try:
                question = next(look)
                while True:
                    question = look.send(self._put(question, until))
            except StopIteration:
                return

    def _put(self, question: Question, until: float) -> Any:
        limit = min(until, time.monotonic() + self._address.connect_timeout / 1000)
        kind: Kind = "sentinel" if question.sentinel else "calls"
        try:
            return self._ask(question.node, kind, packed(*question.command), 1, limit, limit)[0]
        except StoreError as error:
            return error
        except Lost as lost:
            return StoreUnavailable(f"{question.node}: {lost}")

    def _forked(self) -> None:
        self._pool.close()  # a socket that is closed in the child lives on in the parent
        self._pool = ConnectionPool()
        self._looking = threading.Lock()
        self._pid = os.getpid()
