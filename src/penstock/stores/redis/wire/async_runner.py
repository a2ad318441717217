"""Calls go out and answers come back, from any number of event loops: the `AsyncRunner`.

`request_batch.py` and `topology.py` decide what to send, where, and whether again, for this runner
and for that of threads (`sync_runner.py`); connections, waiting and forks are here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core import forks
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.per_loop import PerLoop
from penstock.stores.redis.wire.address import Address, Mode, Node
from penstock.stores.redis.wire.async_connection import Link, open_link
from penstock.stores.redis.wire.calls import Call
from penstock.stores.redis.wire.encoding import packed
from penstock.stores.redis.wire.faults import Lost, Unsent
from penstock.stores.redis.wire.handshake import OnConnect
from penstock.stores.redis.wire.listener import Ear
from penstock.stores.redis.wire.loop_connections import Here
from penstock.stores.redis.wire.request_batch import Errand, Parcel
from penstock.stores.redis.wire.sync_runner import SyncRunner
from penstock.stores.redis.wire.topology import Directory, FixedDirectory, Question, directory_of

__all__ = ["AsyncRunner", "SyncRunner"]


class AsyncRunner:
    """For any number of event loops and threads; each loop has links of its own, forks are noticed."""

    def __init__(self, address: Address, *, on_connect: OnConnect | None = None) -> None:
        self._address = address
        self._on_connect = on_connect
        self._directory: Directory = directory_of(address)
        self._lock = forks.lock()
        self._pid = os.getpid()
        self._loops: PerLoop[Here] = PerLoop(Here.let_go)

    @property
    def mode(self) -> Mode:
        return self._address.mode

    @property
    def address(self) -> Address:
        return self._address

    async def run(self, calls: Sequence[Call], *, within: int | None = None) -> list[Any]:
        """One answer per call, in order; an answer may be an error of ours, which is not raised.

        Calls to one server go out in one write. `within`: ms until which an answer must be there.
        """
        here = self._here()
        if here.will is None:
            await here.begin()
        errand = Errand(calls, self._directory, self._address, within)
        return await self._answers(here, errand)

    async def everywhere(self, calls: Sequence[Call], *, within: int | None = None) -> dict[Node, list[Any]]:
        """The same plain commands to every master: the only one, or all of a cluster. Raises StoreError."""
        here = self._here()
        await here.begin()
        limit = self._address.timeout if within is None else within
        if self._directory.vague:
            await self._look(here, time.monotonic() + limit / 1000)
        nodes = self._directory.masters()
        answers = await asyncio.gather(*(self.at(node, calls, within=within) for node in nodes))
        return dict(zip(nodes, answers, strict=True))

    async def at(self, node: Node, calls: Sequence[Call], *, within: int | None = None) -> list[Any]:
        """The same to one server, whatever it has: as `run`."""
        here = self._here()
        await here.begin()
        errand = Errand(calls, FixedDirectory(self._address, node), self._address, within)
        return await self._answers(here, errand)

    async def _answers(self, here: Here, errand: Errand) -> list[Any]:
        while not errand.done:
            try:
                if self._directory.vague:
                    await self._look(here, errand.until)
            except StoreError as error:
                errand.cannot_look(error)
            else:
                parcels = errand.parcels()
                if len(parcels) == 1:
                    await self._deliver(here, parcels[0])
                else:
                    await asyncio.gather(*(self._deliver(here, parcel) for parcel in parcels))
            if not errand.done and (seconds := errand.pause()):
                await asyncio.sleep(seconds)
        return errand.answers

    async def listen(self, channel: bytes, hear: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """From its return on `hear` is called for each message in this loop, and `lost` whenever the
        connection had to be made anew, so that messages may have been missed. Raises StoreError."""
        here = self._here()
        await here.begin()
        if here.ear is None:
            here.ear = Ear(self._address, lambda: self._connect_ear(here))
        await here.ear.listen(channel, hear, lost)

    async def unlisten(self, channel: bytes) -> None:
        here = self._here()
        if here.ear is not None:
            here.ear.unlisten(channel)

    def close(self) -> None:
        """Let go of the connections, from any thread; a later call opens new ones."""
        self._loops.drop_closed()  # who is closed holds no loop that is
        for loop, here in self._loops.items():
            _close_in(loop, here.close)

    async def _deliver(self, here: Here, parcel: Parcel) -> None:
        until = parcel.until
        try:
            link = await here.link(parcel.node, parcel.kind, parcel.connect_until)
            replies = await link.ask(*parcel.packed(), until)
        except StoreError as error:
            parcel.unsent(error)
        except Unsent as unsent:
            parcel.unsent(StoreUnavailable(f"{self._address.at(parcel.node)}: {unsent}"))
        except Lost as lost:
            parcel.lost(str(lost), lost.replies)
        else:
            parcel.came(replies)
            if parcel.shun:
                here.drop(parcel.node)

    async def _connect_ear(self, here: Here) -> Link:
        until = time.monotonic() + self._address.connect_timeout / 1000
        if self._directory.vague:
            await self._look(here, until)
        edition = self._directory.edition
        node = self._directory.node_of(None)
        try:
            if node is None:
                raise StoreUnavailable(f"{self._address.url}: nobody is in charge now")
            here.ear_node = node
            return await open_link(self._address, node, "messages", self._address.connect_timeout / 1000)
        except StoreUnavailable:
            self._directory.doubt(edition, node)
            raise

    async def _look(self, here: Here, until: float) -> None:
        """Find out who is in charge. Raises StoreError."""
        async with here.looking:
            if not self._directory.vague:  # somebody else has looked
                return
            look = self._directory.look()
            try:
                question = next(look)
                while True:
                    question = look.send(await self._put(here, question, until))
            except StopIteration:
                in_charge = self._directory.node_of(None)
                if self.mode == "sentinel" and here.ear is not None and here.ear_node != in_charge:
                    here.ear.leave("another server is in charge")

    async def _put(self, here: Here, question: Question, until: float) -> Any:
        payload = packed(*question.command)
        limit = min(until, time.monotonic() + self._address.connect_timeout / 1000)
        try:
            if not question.sentinel:
                link = await here.link(question.node, "calls", until)
                return (await link.ask(payload, 1, limit))[0]
            timeout = max(limit - time.monotonic(), 0.05)
            link = await open_link(self._address, question.node, "sentinel", timeout)
            try:
                return (await link.ask(payload, 1, limit))[0]
            finally:
                link.close()
        except StoreError as error:
            return error
        except (Lost, Unsent) as lost:
            return StoreUnavailable(f"{question.node}: {lost}")

    def _here(self) -> Here:
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop) if self._pid == os.getpid() else None
        return here or self._settle_in(loop)

    def _settle_in(self, loop: asyncio.AbstractEventLoop) -> Here:
        with self._lock:
            if self._pid != os.getpid():
                _left_to_the_parent.append(self._loops)
                self._loops = PerLoop(Here.let_go)
                self._pid = os.getpid()
        return self._loops.put(loop, Here(self._address, self._on_connect))


#: A child keeps what it has inherited and never touches it: closing it would speak for the parent.
_left_to_the_parent: list[Any] = []


def _close_in(loop: asyncio.AbstractEventLoop, close: Callable[[], None]) -> None:
    """Call `close` where its loop runs, or here if that one runs no more."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    try:
        if running is loop or loop.is_closed() or not loop.is_running():
            close()
        else:
            loop.call_soon_threadsafe(close)
    except RuntimeError:  # the loop was closed a moment ago, and its sockets with it
        pass
