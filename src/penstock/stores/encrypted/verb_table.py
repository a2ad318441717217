"""The verbs of an encrypted store: what of each is encrypted on its way in, or decrypted on its way out.

Every verb is named here, also those that carry nothing encrypted, so that no verb of the contract is passed
on by oversight: a table that lacks one cannot be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, ParamSpec, TypeVar

from msgspec.structs import replace

from penstock.core.job import Ref, State
from penstock.core.schedule import Entry
from penstock.stores.contract import Page, PartitionInfo, Replacement, Store, Tick, Timetable
from penstock.stores.encrypted.changing import EditJobs, MoveJobs
from penstock.stores.encrypted.documents import AppendLog, ChangeDocuments, ListDocuments, ReadLog
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.encrypted.flows import AddToFlow, PutFlow, decrypted
from penstock.stores.encrypted.inner_verbs import verbs_of
from penstock.stores.encrypted.measuring import AddStats, ReadErrors
from penstock.stores.encrypted.searching import SearchJobs
from penstock.stores.encrypted.steps import AwaitSignals, ReadSteps, RecordSteps, SendSignals
from penstock.stores.facade import AsyncOperation, Operation, VerbTable

__all__ = ["verb_table"]

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


class _Encrypting(Generic[A, R]):
    """A verb whose one argument is encrypted."""

    def __init__(self, inner: AsyncOperation[[A], R], encrypt: Callable[[A], A]) -> None:
        self._inner = inner
        self._encrypt = encrypt

    def run(self, argument: A, /) -> Awaitable[R]:
        return self._inner.run(self._encrypt(argument))


class _EncryptingBoth(_Encrypting[A, R]):
    """The same, also for callers without an event loop."""

    def __init__(self, inner: Operation[[A], R], encrypt: Callable[[A], A]) -> None:
        super().__init__(inner, encrypt)
        self._inner_sync = inner

    def run_sync(self, argument: A, /) -> R:
        return self._inner_sync.run_sync(self._encrypt(argument))


class _Decrypting(Generic[P, R]):
    """A verb whose answer is decrypted."""

    def __init__(self, inner: AsyncOperation[P, R], decrypt: Callable[[R], R]) -> None:
        self._inner = inner
        self._decrypt = decrypt

    async def run(self, *args: P.args, **options: P.kwargs) -> R:
        return self._decrypt(await self._inner.run(*args, **options))


class _DecryptingBoth(_Decrypting[P, R]):
    """The same, also for callers without an event loop."""

    def __init__(self, inner: Operation[P, R], decrypt: Callable[[R], R]) -> None:
        super().__init__(inner, decrypt)
        self._inner_sync = inner

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R:
        return self._decrypt(self._inner_sync.run_sync(*args, **options))


class _EndWithReason:
    """End jobs with a reason that is encrypted for each job by itself, so that each job is one call."""

    def __init__(
        self, inner: AsyncOperation[[Sequence[Ref], str], list[State | None]], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, refs: Sequence[Ref], reason: str, /) -> list[State | None]:
        if not self._cipher.encrypts_reason(reason):
            return await self._inner.run(refs, reason)
        once = dict.fromkeys(refs)
        calls = [self._inner.run([ref], self._cipher.encrypt_reason(ref, reason)) for ref in once]
        answers = dict(zip(once, await asyncio.gather(*calls), strict=True))
        return [answers[ref][0] for ref in refs]


class _EndWithReasonBoth(_EndWithReason):
    """The same, also for callers without an event loop."""

    def __init__(
        self, inner: Operation[[Sequence[Ref], str], list[State | None]], cipher: FieldCipher
    ) -> None:
        super().__init__(inner, cipher)
        self._inner_sync = inner

    def run_sync(self, refs: Sequence[Ref], reason: str, /) -> list[State | None]:
        if not self._cipher.encrypts_reason(reason):
            return self._inner_sync.run_sync(refs, reason)
        answers = {
            ref: self._inner_sync.run_sync([ref], self._cipher.encrypt_reason(ref, reason))[0]
            for ref in dict.fromkeys(refs)
        }
        return [answers[ref] for ref in refs]


def verb_table(store: Store, cipher: FieldCipher) -> VerbTable:
    """The verbs of this store, with what they carry encrypted below and clear above."""
    inner = verbs_of(store)

    def page(found: Page) -> Page:
        return replace(found, jobs=cipher.decrypt_jobs(found.jobs))

    def partition(found: PartitionInfo | None) -> PartitionInfo | None:
        return None if found is None else replace(found, admitted=cipher.decrypt_jobs(found.admitted))

    def timetable(found: Timetable) -> Timetable:
        return replace(found, entries=[cipher.decrypt_entry(entry) for entry in found.entries])

    def paused(found: list[Entry | None]) -> list[Entry | None]:
        return [None if entry is None else cipher.decrypt_entry(entry) for entry in found]

    def ticks(given: Sequence[Tick]) -> Sequence[Tick]:
        return [replace(tick, jobs=tuple(cipher.encrypt_jobs(tick.jobs))) for tick in given]

    def replacements(given: Sequence[Replacement]) -> Sequence[Replacement]:
        news = cipher.encrypt_jobs([one.new for one in given])
        return [replace(one, new=new) for one, new in zip(given, news, strict=True)]

    return VerbTable(
        # calls are encrypted, and what attempts say of themselves
        enqueue=_EncryptingBoth(inner.enqueue, cipher.encrypt_jobs),
        cancel=_EndWithReasonBoth(inner.cancel, cipher),
        edit_jobs=EditJobs(inner.edit_jobs, inner.get, cipher),
        move_jobs=MoveJobs(inner.move_jobs, inner.get, cipher),
        discard=_EndWithReason(inner.discard, cipher),
        extend=_Encrypting(
            inner.extend, lambda requests: [cipher.encrypt_heartbeat(request) for request in requests]
        ),
        settle=_Encrypting(inner.settle, lambda given: [cipher.encrypt_settlement(one) for one in given]),
        tick=_Encrypting(inner.tick, ticks),
        replace_jobs=_Encrypting(inner.replace_jobs, replacements),
        put_entries=_Decrypting(
            _Encrypting(inner.put_entries, lambda given: [cipher.encrypt_entry(entry) for entry in given]),
            lambda put: [cipher.decrypt_entry(entry) for entry in put],
        ),
        # jobs and periodic entries are decrypted
        get=_DecryptingBoth(inner.get, cipher.decrypt_jobs),
        fetch=_Decrypting(inner.fetch, cipher.decrypt_fetched),
        reclaim=_Decrypting(inner.reclaim, cipher.decrypt_fetched),
        list_jobs=_Decrypting(inner.list_jobs, page),
        list_next=_Decrypting(inner.list_next, page),
        search_jobs=SearchJobs(inner.search_jobs, cipher),
        find=_DecryptingBoth(inner.find, cipher.decrypt_jobs),
        partition=_Decrypting(inner.partition, partition),
        entries=_Decrypting(inner.entries, timetable),
        pause_entries=_Decrypting(inner.pause_entries, paused),
        # documents and log entries
        documents=ListDocuments(inner.documents, cipher),
        change_documents=ChangeDocuments(inner.change_documents, cipher),
        append_log=AppendLog(inner.append_log, cipher),
        read_log=ReadLog(inner.read_log, cipher),
        # the jobs and results of nodes
        put_flow=PutFlow(inner.put_flow, cipher),
        add_to_flow=AddToFlow(inner.add_to_flow, cipher),
        flow_nodes=_DecryptingBoth(inner.flow_nodes, lambda found: decrypted(cipher, found)),
        # durable steps and signals
        record_steps=RecordSteps(inner.record_steps, cipher),
        steps=ReadSteps(inner.steps, cipher),
        await_signals=AwaitSignals(inner.await_signals, cipher),
        send_signals=SendSignals(inner.send_signals, cipher),
        # the messages of errors
        add_stats=AddStats(inner.add_stats, cipher),
        read_errors=ReadErrors(inner.read_errors, cipher),
        # these carry nothing that is encrypted
        read_stats=inner.read_stats,
        sample_depths=inner.sample_depths,
        read_depths=inner.read_depths,
        queue_sizes=inner.queue_sizes,
        get_flows=inner.get_flows,
        list_flows=inner.list_flows,
        change_flow=inner.change_flow,
        advance_flows=inner.advance_flows,
        document_versions=inner.document_versions,
        take_quota=inner.take_quota,
        promote=inner.promote,
        queues=inner.queues,
        parked=inner.parked,
        stats=inner.stats,
        settings=inner.settings,
        retry=inner.retry,
        reschedule=inner.reschedule,
        delete=inner.delete,
        purge=inner.purge,
        drop=inner.drop,
        prune=inner.prune,
        announce=inner.announce,
        retire=inner.retire,
        workers=inner.workers,
        delete_entries=inner.delete_entries,
        batches=inner.batches,
        flush_batch=inner.flush_batch,
    )
