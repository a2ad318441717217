"""The verbs of the store inside an encrypted one, as a table.

A store inside may itself be a double or a store around another one, so each verb is asked by the method that
the contract names, with the arguments as the contract has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, ParamSpec, TypeVar

from msgspec import UnsetType

from penstock.core.job import Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract import QueueInfo, Store, SyncStore
from penstock.stores.facade import Operation, VerbTable

__all__ = ["verbs_of"]

P = ParamSpec("P")
R = TypeVar("R")


class _InnerOperation(Generic[P, R]):
    """A verb of another store, asked by its method."""

    def __init__(self, ask: Callable[P, Awaitable[R]]) -> None:
        self._ask = ask

    def run(self, *args: P.args, **options: P.kwargs) -> Awaitable[R]:
        return self._ask(*args, **options)


class _AskedBoth(_InnerOperation[P, R]):
    """The same, also for callers without an event loop."""

    def __init__(self, ask: Callable[P, Awaitable[R]], ask_sync: Callable[P, R]) -> None:
        super().__init__(ask)
        self._ask_sync = ask_sync

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R:
        return self._ask_sync(*args, **options)


def verbs_of(store: Store) -> VerbTable:
    """The verbs of any store, each asked by its method of the contract."""
    sync = store.sync
    return VerbTable(
        enqueue=_AskedBoth(store.enqueue, sync.enqueue),
        get=_AskedBoth(store.get, sync.get),
        cancel=_cancel(store, sync),
        fetch=_InnerOperation(
            lambda queues, limit, lease, worker, token, charge: store.fetch(
                queues, limit=limit, lease=lease, worker=worker, token=token, charge=charge
            )
        ),
        extend=_InnerOperation(store.extend),
        settle=_InnerOperation(store.settle),
        promote=_InnerOperation(lambda queues, limit: store.promote(queues, limit=limit)),
        reclaim=_InnerOperation(
            lambda queues, limit, lease, worker, token, of: store.reclaim(
                queues, limit=limit, lease=lease, worker=worker, token=token, of=of
            )
        ),
        list_jobs=_InnerOperation(
            lambda queue, state, task, worker, after, limit: store.list_jobs(
                queue=queue, state=state, task=task, worker=worker, after=after, limit=limit
            )
        ),
        list_next=_InnerOperation(
            lambda queue, state, after, limit: store.list_next(queue, state=state, after=after, limit=limit)
        ),
        search_jobs=_InnerOperation(
            lambda filter, order, descending, after, limit: store.search_jobs(
                filter, order=order, descending=descending, after=after, limit=limit
            )
        ),
        find=_AskedBoth(store.find, sync.find),
        queues=_AskedBoth(store.queues, lambda _: sync.queues()),
        parked=_InnerOperation(store.parked),
        stats=_InnerOperation(lambda days: store.stats(days=days)),
        settings=_settings(store, sync),
        retry=_retry(store, sync),
        reschedule=_reschedule(store, sync),
        delete=_AskedBoth(
            lambda refs, running, keep_keys: store.delete(refs, running=running, keep_keys=keep_keys),
            lambda refs, running, keep_keys: sync.delete(refs, running=running, keep_keys=keep_keys),
        ),
        edit_jobs=_InnerOperation(store.edit_jobs),
        move_jobs=_InnerOperation(store.move_jobs),
        discard=_InnerOperation(lambda refs, reason: store.discard(refs, reason=reason)),
        replace_jobs=_InnerOperation(store.replace_jobs),
        purge=_InnerOperation(lambda queue, states, limit: store.purge(queue, states, limit=limit)),
        drop=_InnerOperation(store.drop),
        partition=_InnerOperation(store.partition),
        prune=_InnerOperation(
            lambda limit, keep_finished, keep_dead: store.prune(
                limit=limit, keep_finished=keep_finished, keep_dead=keep_dead
            )
        ),
        announce=_InnerOperation(store.announce),
        retire=_InnerOperation(store.retire),
        workers=_InnerOperation(store.workers),
        entries=_InnerOperation(store.entries),
        put_entries=_InnerOperation(store.put_entries),
        pause_entries=_InnerOperation(store.pause_entries),
        delete_entries=_InnerOperation(store.delete_entries),
        batches=_InnerOperation(lambda queue, limit: store.batches(queue, limit=limit)),
        flush_batch=_InnerOperation(lambda queue, task, key: store.flush_batch(queue, task=task, key=key)),
        tick=_InnerOperation(store.tick),
        documents=_InnerOperation(lambda kind, after, limit: store.documents(kind, after=after, limit=limit)),
        document_versions=_InnerOperation(store.document_versions),
        change_documents=_InnerOperation(
            lambda kind, changes, notify: store.change_documents(kind, changes, notify=notify)
        ),
        take_quota=_InnerOperation(store.take_quota),
        append_log=_InnerOperation(lambda log, entries, keep: store.append_log(log, entries, keep=keep)),
        read_log=_InnerOperation(lambda log, before, limit: store.read_log(log, before=before, limit=limit)),
        add_stats=_InnerOperation(store.add_stats),
        read_stats=_InnerOperation(
            lambda resolution, span, queue, task: store.read_stats(
                resolution, span=span, queue=queue, task=task
            )
        ),
        read_errors=_InnerOperation(lambda queue, task: store.read_errors(queue=queue, task=task)),
        sample_depths=_InnerOperation(store.sample_depths),
        read_depths=_InnerOperation(
            lambda resolution, span, queue: store.read_depths(resolution, span=span, queue=queue)
        ),
        queue_sizes=_InnerOperation(store.queue_sizes),
        put_flow=_AskedBoth(
            lambda flow, nodes, start: store.put_flow(flow, nodes, start=start),
            lambda flow, nodes, start: sync.put_flow(flow, nodes, start=start),
        ),
        add_to_flow=_AskedBoth(
            lambda ref, join, jobs, key: store.add_to_flow(ref, join, jobs, key=key),
            lambda ref, join, jobs, key: sync.add_to_flow(ref, join, jobs, key=key),
        ),
        get_flows=_AskedBoth(store.get_flows, sync.get_flows),
        flow_nodes=_AskedBoth(
            lambda ref, indexes, results: store.flow_nodes(ref, indexes, results=results),
            lambda ref, indexes, results: sync.flow_nodes(ref, indexes, results=results),
        ),
        list_flows=_InnerOperation(lambda after, limit: store.list_flows(after=after, limit=limit)),
        change_flow=_AskedBoth(
            lambda ref, change, node: store.change_flow(ref, change, node=node),
            lambda ref, change, node: sync.change_flow(ref, change, node=node),
        ),
        advance_flows=_AskedBoth(
            lambda limit: store.advance_flows(limit=limit), lambda limit: sync.advance_flows(limit=limit)
        ),
        record_steps=_AskedBoth(store.record_steps, sync.record_steps),
        steps=_AskedBoth(
            lambda ref, names, largest: store.steps(ref, names=names, largest=largest),
            lambda ref, names, largest: sync.steps(ref, names=names, largest=largest),
        ),
        await_signals=_AskedBoth(store.await_signals, sync.await_signals),
        send_signals=_AskedBoth(store.send_signals, sync.send_signals),
    )


def _cancel(store: Store, sync: SyncStore) -> Operation[[Sequence[Ref], str], list[State | None]]:
    return _AskedBoth(
        lambda refs, reason: store.cancel(refs, reason=reason),
        lambda refs, reason: sync.cancel(refs, reason=reason),
    )


def _settings(
    store: Store, sync: SyncStore
) -> Operation[[str, bool | None, bool | None, LimitChange | None], QueueInfo]:
    return _AskedBoth(
        lambda queue, paused, closed, limits: store.settings(
            queue, paused=paused, closed=closed, limits=limits
        ),
        lambda queue, paused, closed, limits: sync.settings(
            queue, paused=paused, closed=closed, limits=limits
        ),
    )


def _retry(
    store: Store, sync: SyncStore
) -> Operation[[Sequence[Ref], int | None, int | UnsetType | None], list[State | None]]:
    return _AskedBoth(
        lambda refs, attempts, expires_in: store.retry(refs, attempts=attempts, expires_in=expires_in),
        lambda refs, attempts, expires_in: sync.retry(refs, attempts=attempts, expires_in=expires_in),
    )


def _reschedule(
    store: Store, sync: SyncStore
) -> Operation[[Sequence[Ref], int, int | None], list[State | None]]:
    return _AskedBoth(
        lambda refs, delay, run_at: store.reschedule(refs, delay=delay, run_at=run_at),
        lambda refs, delay, run_at: sync.reschedule(refs, delay=delay, run_at=run_at),
    )
