"""The verbs of the SQLite store: the function of each verb, and how the runner runs it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, ParamSpec, TypeVar

from penstock.stores.facade import Operation, VerbTable
from penstock.stores.sqlite.calls import Verb
from penstock.stores.sqlite.namespace_runner import NamespaceRunner
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.verbs import (
    batches,
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
    removing,
    searching,
    settling,
    stepping,
    workers,
)

__all__ = ["verb_table"]

P = ParamSpec("P")
R = TypeVar("R")


class _RunnerOperation(Generic[P, R]):
    """A verb bound to a runner."""

    __slots__ = ("_runner", "_verb")

    def __init__(self, runner: Runner | NamespaceRunner, verb: Verb[P, R]) -> None:
        self._runner = runner
        self._verb = verb

    def run(self, *args: P.args, **options: P.kwargs) -> Awaitable[R]:
        return self._runner.ask(self._verb, *args, **options)

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R:
        return self._runner.do(self._verb, *args, **options)


def verb_table(runner: Runner | NamespaceRunner) -> VerbTable:
    """Return all verbs, bound to this runner."""

    def ask(verb: Verb[P, R]) -> Operation[P, R]:
        return _RunnerOperation(runner, verb)

    return VerbTable(
        enqueue=ask(Verb(producing.enqueue)),
        get=ask(Verb(producing.get, reads=True)),
        cancel=ask(Verb(producing.cancel)),
        fetch=ask(Verb(fetching.fetch, probe=fetching.probe_fetch, syncs=False)),
        extend=ask(Verb(leases.extend, syncs=leases.must_last)),
        settle=ask(Verb(settling.settle)),
        promote=ask(Verb(promoting.promote, probe=promoting.probe_promote, syncs=False)),
        reclaim=ask(Verb(leases.reclaim, probe=leases.probe_reclaim, syncs=False)),
        list_jobs=ask(Verb(listing.list_jobs, reads=True)),
        list_next=ask(Verb(list_next.list_next, reads=True)),
        search_jobs=ask(Verb(searching.search_jobs, reads=True)),
        find=ask(Verb(listing.find, reads=True)),
        queues=ask(Verb(listing.queues, reads=True)),
        parked=ask(Verb(listing.parked, reads=True)),
        stats=ask(Verb(listing.stats, reads=True)),
        settings=ask(Verb(operating.settings)),
        retry=ask(Verb(operating.retry)),
        reschedule=ask(Verb(operating.reschedule)),
        delete=ask(Verb(removing.delete)),
        edit_jobs=ask(Verb(changing.edit_jobs)),
        move_jobs=ask(Verb(changing.move_jobs)),
        discard=ask(Verb(changing.discard)),
        replace_jobs=ask(Verb(removing.replace_jobs)),
        purge=ask(Verb(removing.purge)),
        drop=ask(Verb(operating.drop)),
        partition=ask(Verb(listing.partition, reads=True)),
        prune=ask(Verb(pruning.prune, probe=pruning.probe_prune)),
        announce=ask(Verb(workers.announce, syncs=False)),
        retire=ask(Verb(workers.retire, syncs=False)),
        workers=ask(Verb(workers.workers, reads=True)),
        entries=ask(Verb(periodic.entries, reads=True)),
        put_entries=ask(Verb(periodic.put_entries, probe=periodic.probe_put_entries)),
        pause_entries=ask(Verb(periodic.pause_entries)),
        delete_entries=ask(Verb(periodic.delete_entries)),
        batches=ask(Verb(batches.list_batches, reads=True)),
        flush_batch=ask(Verb(batches.flush_batch)),
        tick=ask(Verb(periodic.tick)),
        documents=ask(Verb(documents.documents, reads=True)),
        document_versions=ask(Verb(documents.document_versions, reads=True)),
        change_documents=ask(Verb(documents.change_documents)),
        take_quota=ask(Verb(documents.take_quota, syncs=False)),
        append_log=ask(Verb(documents.append_log)),
        add_stats=ask(Verb(measuring.add_stats, syncs=False)),
        read_stats=ask(Verb(measuring.read_stats, reads=True)),
        read_errors=ask(Verb(measuring.read_errors, reads=True)),
        sample_depths=ask(Verb(depths.sample_depths, probe=depths.probe_sample_depths, syncs=False)),
        read_depths=ask(Verb(depths.read_depths, reads=True)),
        queue_sizes=ask(Verb(measuring.queue_sizes, reads=True)),
        put_flow=ask(Verb(flows.put_flow)),
        add_to_flow=ask(Verb(flows.add_to_flow)),
        get_flows=ask(Verb(flows.get_flows, reads=True)),
        flow_nodes=ask(Verb(flows.flow_nodes, reads=True)),
        list_flows=ask(Verb(flows.list_flows, reads=True)),
        change_flow=ask(Verb(flows.change_flow)),
        advance_flows=ask(Verb(flows.advance_flows, probe=flows.probe_advance)),
        read_log=ask(Verb(documents.read_log, reads=True)),
        record_steps=ask(Verb(stepping.record_steps)),
        steps=ask(Verb(stepping.steps, reads=True)),
        await_signals=ask(Verb(stepping.await_signals)),
        send_signals=ask(Verb(stepping.send_signals)),
    )
