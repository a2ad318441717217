"""The verbs of the memory store: the function of each verb, run under the lock of the data."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from penstock.core.clock import Clock
from penstock.core.errors import StoreError
from penstock.stores.facade import VerbTable
from penstock.stores.memory.state import MemoryState, named
from penstock.stores.memory.verbs import (
    changing,
    depths,
    documents,
    fetching,
    flows,
    leases,
    list_next,
    listing,
    measuring,
    operating,
    periodic,
    producing,
    promoting,
    pruning,
    searching,
    settling,
    stepping,
    workers,
)
from penstock.stores.rate_limiter import ExactRateLimiter, RateLimiter

__all__ = ["OwnedMemory", "verb_table"]

P = ParamSpec("P")
R = TypeVar("R")


class OwnedMemory:
    """The data of one store object, for the process that made it."""

    def __init__(self, name: str, namespace: str, clock: Clock, *, exact: bool) -> None:
        self.url = f"memory://{name}"
        self._memory = (
            named(name, namespace, clock)
            if name
            else MemoryState(clock, ExactRateLimiter if exact else RateLimiter)
        )

    @property
    def memory(self) -> MemoryState:
        """The data; raises StoreError in a forked child, because no worker would see its copy."""
        if self._memory.pid != os.getpid():
            raise StoreError(
                f"{self.url} belongs to one process, and this is a fork of it: jobs stored here are lost; "
                "use sqlite:///FILE to share jobs between processes"
            )
        return self._memory


class _Locked(Generic[P, R]):
    """A function of the data, run as one atomic step."""

    __slots__ = ("_act", "_owned")

    def __init__(self, owned: OwnedMemory, act: Callable[Concatenate[MemoryState, P], R]) -> None:
        self._owned = owned
        self._act = act

    async def run(self, *args: P.args, **options: P.kwargs) -> R:
        memory = self._owned.memory
        with memory.lock:
            answer = self._act(memory, *args, **options)
            if memory.flow_ends:
                flows.count_ends(memory)
            return answer

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R:
        memory = self._owned.memory
        with memory.lock:
            answer = self._act(memory, *args, **options)
            if memory.flow_ends:
                flows.count_ends(memory)
            return answer


def verb_table(owned: OwnedMemory) -> VerbTable:
    """Return all verbs, bound to this data."""
    return VerbTable(
        enqueue=_Locked(owned, producing.enqueue),
        get=_Locked(owned, producing.get),
        cancel=_Locked(owned, producing.cancel),
        fetch=_Locked(owned, fetching.fetch),
        extend=_Locked(owned, leases.extend),
        settle=_Locked(owned, settling.settle),
        promote=_Locked(owned, promoting.promote),
        reclaim=_Locked(owned, leases.reclaim),
        list_jobs=_Locked(owned, listing.list_jobs),
        list_next=_Locked(owned, list_next.list_next),
        search_jobs=_Locked(owned, searching.search_jobs),
        find=_Locked(owned, listing.find),
        queues=_Locked(owned, listing.queues),
        parked=_Locked(owned, listing.parked),
        stats=_Locked(owned, listing.stats),
        settings=_Locked(owned, operating.settings),
        retry=_Locked(owned, operating.retry),
        reschedule=_Locked(owned, operating.reschedule),
        delete=_Locked(owned, operating.delete),
        edit_jobs=_Locked(owned, changing.edit_jobs),
        move_jobs=_Locked(owned, changing.move_jobs),
        discard=_Locked(owned, changing.discard),
        replace_jobs=_Locked(owned, operating.replace_jobs),
        purge=_Locked(owned, operating.purge),
        drop=_Locked(owned, operating.drop),
        partition=_Locked(owned, listing.partition),
        prune=_Locked(owned, pruning.prune),
        announce=_Locked(owned, workers.announce),
        retire=_Locked(owned, workers.retire),
        workers=_Locked(owned, workers.workers),
        entries=_Locked(owned, periodic.entries),
        put_entries=_Locked(owned, periodic.put_entries),
        pause_entries=_Locked(owned, periodic.pause_entries),
        delete_entries=_Locked(owned, periodic.delete_entries),
        batches=_Locked(owned, listing.batches),
        flush_batch=_Locked(owned, operating.flush_batch),
        tick=_Locked(owned, periodic.tick),
        documents=_Locked(owned, documents.documents),
        document_versions=_Locked(owned, documents.document_versions),
        change_documents=_Locked(owned, documents.change_documents),
        take_quota=_Locked(owned, documents.take_quota),
        append_log=_Locked(owned, documents.append_log),
        read_log=_Locked(owned, documents.read_log),
        add_stats=_Locked(owned, measuring.add_stats),
        read_stats=_Locked(owned, measuring.read_stats),
        read_errors=_Locked(owned, measuring.read_errors),
        sample_depths=_Locked(owned, depths.sample_depths),
        read_depths=_Locked(owned, depths.read_depths),
        queue_sizes=_Locked(owned, measuring.queue_sizes),
        put_flow=_Locked(owned, flows.put_flow),
        add_to_flow=_Locked(owned, flows.add_to_flow),
        get_flows=_Locked(owned, flows.get_flows),
        flow_nodes=_Locked(owned, flows.flow_nodes),
        list_flows=_Locked(owned, flows.list_flows),
        change_flow=_Locked(owned, flows.change_flow),
        advance_flows=_Locked(owned, flows.advance_flows),
        record_steps=_Locked(owned, stepping.record_steps),
        steps=_Locked(owned, stepping.steps),
        await_signals=_Locked(owned, stepping.await_signals),
        send_signals=_Locked(owned, stepping.send_signals),
    )
