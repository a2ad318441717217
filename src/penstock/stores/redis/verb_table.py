"""The verbs of the Redis store: the function that makes the call plan of each verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from penstock.stores.facade import Operation, VerbTable
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.plan_runner import PlanRunner
from penstock.stores.redis.verbs import (
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
    searching,
    settling,
    stepping,
    workers,
)

__all__ = ["verb_table"]

P = ParamSpec("P")
R = TypeVar("R")


class _Planned(Generic[P, R]):
    """A function that makes a call plan, with the runner of the plan."""

    __slots__ = ("_context", "_plan", "_plans")

    def __init__(self, plans: PlanRunner, plan: Callable[Concatenate[Context, P], CallPlan[R]]) -> None:
        self._plans = plans
        self._context = plans.context
        self._plan = plan

    def run(self, *args: P.args, **options: P.kwargs) -> Awaitable[R]:
        return self._plans.run(self._plan(self._context, *args, **options))

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R:
        return self._plans.run_sync(self._plan(self._context, *args, **options))


def verb_table(plans: PlanRunner) -> VerbTable:
    """Return all verbs, bound to this plan runner. `RedisStore.fetch` takes dispatched jobs first."""

    def plan(make: Callable[Concatenate[Context, P], CallPlan[R]]) -> Operation[P, R]:
        return _Planned(plans, make)

    return VerbTable(
        enqueue=plan(producing.enqueue),
        get=plan(producing.get),
        cancel=plan(producing.cancel),
        fetch=plan(fetching.fetch),
        extend=plan(leases.extend),
        settle=plan(settling.settle),
        promote=plan(promoting.promote),
        reclaim=plan(leases.reclaim),
        list_jobs=plan(listing.list_jobs),
        list_next=plan(list_next.list_next),
        search_jobs=plan(searching.search_jobs),
        find=plan(listing.find),
        queues=plan(listing.queues),
        parked=plan(listing.parked),
        stats=plan(listing.stats),
        settings=plan(operating.settings),
        retry=plan(operating.retry),
        reschedule=plan(operating.reschedule),
        delete=plan(operating.delete),
        edit_jobs=plan(changing.edit_jobs),
        move_jobs=plan(changing.move_jobs),
        discard=plan(changing.discard),
        replace_jobs=plan(producing.replace_jobs),
        purge=plan(operating.purge),
        drop=plan(operating.drop),
        partition=plan(listing.partition),
        prune=plan(pruning.prune),
        announce=plan(workers.announce),
        retire=plan(workers.retire),
        workers=plan(workers.workers),
        entries=plan(periodic.entries),
        put_entries=plan(periodic.put_entries),
        pause_entries=plan(periodic.pause_entries),
        delete_entries=plan(periodic.delete_entries),
        batches=plan(batches.list_batches),
        flush_batch=plan(batches.flush_batch),
        tick=plan(periodic.tick),
        documents=plan(documents.documents),
        document_versions=plan(documents.document_versions),
        change_documents=plan(documents.change_documents),
        take_quota=plan(documents.take_quota),
        append_log=plan(documents.append_log),
        add_stats=plan(measuring.add_stats),
        read_stats=plan(measuring.read_stats),
        read_errors=plan(measuring.read_errors),
        sample_depths=plan(depths.sample_depths),
        read_depths=plan(depths.read_depths),
        queue_sizes=plan(measuring.queue_sizes),
        put_flow=plan(flows.put_flow),
        add_to_flow=plan(flows.add_to_flow),
        get_flows=plan(flows.get_flows),
        flow_nodes=plan(flows.flow_nodes),
        list_flows=plan(flows.list_flows),
        change_flow=plan(flows.change_flow),
        advance_flows=plan(flows.advance_flows),
        read_log=plan(documents.read_log),
        record_steps=plan(stepping.record_steps),
        steps=plan(stepping.steps),
        await_signals=plan(stepping.await_signals),
        send_signals=plan(stepping.send_signals),
    )
