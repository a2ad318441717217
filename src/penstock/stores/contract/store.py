"""A store: one method for all requests, a line for each verb, its address, and how to close it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, TypeVar

from penstock.core.job import Job, Ref, State
from penstock.stores.contract import (
    changing,
    consuming,
    documenting,
    flowing,
    measuring,
    operating,
    producing,
    scheduling,
    searching,
    stepping,
)
from penstock.stores.contract.capabilities import Capability
from penstock.stores.contract.request import Request, SyncRequest, sync_verb, verb
from penstock.stores.contract.searching import MOST_FOUND, JobFilter, JobOrder, SearchHit, SearchPage

A = TypeVar("A")


class SyncStore:
    """The verbs of a store for callers without an event loop; each runs in the caller's thread."""

    @abstractmethod
    def ask(self, request: SyncRequest[A]) -> A:
        """Do what the request says, and return its answer."""

    @abstractmethod
    def stream(self, request: producing.StreamEnds) -> Generator[dict[Ref, Job | None], None, None]:
        """Yield the parts of the answer as they come."""

    def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> Generator[dict[Ref, Job | None], None, None]:
        """As `StreamEnds`."""
        return self.stream(producing.StreamEnds(refs, timeout=timeout))

    enqueue = sync_verb(producing.Enqueue)
    get = sync_verb(producing.Get)
    cancel = sync_verb(producing.CancelJobs)
    wait_for_end = sync_verb(producing.WaitForEnd)
    search = sync_verb(searching.Search)
    retry = changing.sync_act_verb(changing.JobRetry)
    reschedule = changing.sync_act_verb(changing.JobReschedule)
    delete = sync_verb(operating.Delete)
    queues = sync_verb(operating.Queues)
    settings = sync_verb(operating.Settings)
    workers = sync_verb(operating.Workers)
    put_flow = sync_verb(flowing.PutFlow)
    add_to_flow = sync_verb(flowing.AddToFlow)
    get_flows = sync_verb(flowing.GetFlows)
    flow_nodes = sync_verb(flowing.FlowNodes)
    change_flow = sync_verb(flowing.ChangeFlow)
    advance_flows = sync_verb(flowing.AdvanceFlows)
    record_steps = sync_verb(stepping.RecordSteps)
    forget_steps = sync_verb(stepping.ForgetSteps)
    steps = sync_verb(stepping.ReadSteps)
    await_signals = sync_verb(stepping.AwaitSignals)
    send_signals = sync_verb(stepping.SendSignals)
    signal_waiters = sync_verb(stepping.SignalWaiters)


class Store:
    """A place where jobs are kept.

    A store implements `ask` for every request but StreamEnds, which `stream` answers, and the other methods.
    A store around a store (one that encrypts, records, counts) passes the requests on.

    A store opens its files or connections at its first verb, once per process: a forked child opens its own.
    """

    #: What the store can do; a store that lacks something must say so. Stores of our own can do everything.
    capabilities: frozenset[Capability] = frozenset(Capability)

    def can(self, capability: Capability) -> bool:
        """Whether the store answers the requests, and honours the options, of this capability."""
        return capability in self.capabilities

    async def now(self) -> int:
        """The store's clock (ms since the epoch)."""
        if self.can(Capability.SCHEDULE):
            return (await self.entries([])).now
        return (await self.promote((), limit=1)).now  # of no queue: nothing changes

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the store, without secrets."""

    @property
    @abstractmethod
    def sync(self) -> SyncStore:
        """The sync verbs, for callers without an event loop."""

    @abstractmethod
    async def ask(self, request: Request[A]) -> A:
        """Do what the request says, and return its answer."""

    @abstractmethod
    def stream(self, request: producing.StreamEnds) -> AsyncGenerator[dict[Ref, Job | None], None]:
        """Yield the parts of the answer as they come."""

    @abstractmethod
    def in_namespace(self, namespace: str) -> Store:
        """Return the store of another namespace on the connections, threads and files of this one.

        - The same namespace gives the same object, from every view, as long as the store exists: open views
          only of namespaces that are in use. The store's own namespace gives the store.
        - Closing a view releases nothing; closing the store releases what its views share.

        Errors: ConfigError for a name that no namespace can have.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files, threads and connections. Safe to call twice."""

    def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> AsyncGenerator[dict[Ref, Job | None], None]:
        """As `StreamEnds`."""
        return self.stream(producing.StreamEnds(refs, timeout=timeout))

    async def list_jobs(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        task: str | None = None,
        worker: str | None = None,
        order: JobOrder = JobOrder.ENQUEUED,
        descending: bool = True,
        after: str | None = None,
        limit: int = 50,
    ) -> SearchPage:
        """Search until `limit` jobs (at least 1) are found; `next` is None exactly if no other job matches.

        Arguments and errors are those of `search`.
        """
        queues, states = () if queue is None else (queue,), () if state is None else (state,)
        filter, limit = JobFilter(queues, states, task, worker), max(1, limit)
        hits: list[SearchHit] = []
        seen, away = 0, set[str]()
        while True:
            most = limit + 1 - len(hits)
            page = await self.search(filter, order=order, descending=descending, after=after, limit=most)
            hits += page.hits
            seen, after = seen + page.seen, page.next
            away.update(page.away)
            if after is None or len(hits) > limit:
                following = hits[limit - 1].after if len(hits) > limit else None
                return SearchPage(hits[:limit], following, seen, tuple(sorted(away)))

    async def find(self, id: str) -> list[Job]:
        """Find the jobs with this id in all queues, by the queues' names; errors are those of `search`."""
        jobs: list[Job] = []
        page = await self.search(JobFilter(id=id), limit=MOST_FOUND)
        while page.next is not None:
            jobs += page.jobs
            page = await self.search(JobFilter(id=id), after=page.next, limit=MOST_FOUND)
        return sorted([*jobs, *page.jobs], key=lambda job: job.queue)

    # producing
    enqueue = verb(producing.Enqueue)
    get = verb(producing.Get)
    cancel = verb(producing.CancelJobs)
    wait_for_end = verb(producing.WaitForEnd)

    # consuming
    fetch = verb(consuming.Fetch)
    extend = verb(consuming.Extend)
    settle = verb(consuming.Settle)
    promote = verb(consuming.Promote)
    reclaim = verb(consuming.Reclaim)
    wait = verb(consuming.Wait)

    # scheduling
    entries = verb(scheduling.Entries)
    put_entries = verb(scheduling.PutEntries)
    pause_entries = verb(scheduling.PauseEntries)
    delete_entries = verb(scheduling.DeleteEntries)
    tick = verb(scheduling.TickEntries)

    # operating
    checkup = verb(operating.Checkup)
    delete = verb(operating.Delete)
    replace_jobs = verb(operating.ReplaceJobs)
    purge = verb(operating.Purge)
    queues = verb(operating.Queues)
    parked = verb(operating.CountParked)
    stats = verb(operating.Stats)
    settings = verb(operating.Settings)
    drop = verb(operating.Drop)
    partition = verb(operating.ReadPartition)
    batches = verb(operating.Batches)
    flush_batch = verb(operating.FlushBatch)
    prune = verb(operating.Prune)
    announce = verb(operating.Announce)
    retire = verb(operating.Retire)
    workers = verb(operating.Workers)

    # changing
    change_jobs = verb(changing.ChangeJobs)
    retry = changing.act_verb(changing.JobRetry)
    reschedule = changing.act_verb(changing.JobReschedule)
    discard = changing.act_verb(changing.JobDiscard)
    complete = changing.act_verb(changing.JobCompletion)

    async def edit_jobs(self, edits: Sequence[changing.JobEdit]) -> list[bool]:
        """As `JobEdit`. Answer: one per edit: whether it changed the job."""
        return [one.changed for one in await self.ask(changing.ChangeJobs(edits))]

    async def move_jobs(self, moves: Sequence[changing.JobMove]) -> list[producing.Enqueued | None]:
        """As `JobMove`. Answer: one `Changed.moved` per move."""
        return [one.moved for one in await self.ask(changing.ChangeJobs(moves))]

    # searching
    search = verb(searching.Search)

    # documenting
    documents = verb(documenting.Documents)
    document_versions = verb(documenting.DocumentVersions)
    change_documents = verb(documenting.ChangeDocuments)
    take_quota = verb(documenting.TakeQuota)
    append_log = verb(documenting.AppendLog)
    read_log = verb(documenting.ReadLog)

    # measuring
    add_stats = verb(measuring.AddStats)
    read_stats = verb(measuring.ReadStats)
    read_errors = verb(measuring.ReadErrors)
    sample_depths = verb(measuring.SampleDepths)
    read_depths = verb(measuring.ReadDepths)
    queue_sizes = verb(measuring.QueueSizes)

    # flowing
    put_flow = verb(flowing.PutFlow)
    add_to_flow = verb(flowing.AddToFlow)
    get_flows = verb(flowing.GetFlows)
    flow_nodes = verb(flowing.FlowNodes)
    list_flows = verb(flowing.ListFlows)
    change_flow = verb(flowing.ChangeFlow)
    advance_flows = verb(flowing.AdvanceFlows)

    # stepping
    record_steps = verb(stepping.RecordSteps)
    forget_steps = verb(stepping.ForgetSteps)
    steps = verb(stepping.ReadSteps)
    await_signals = verb(stepping.AwaitSignals)
    send_signals = verb(stepping.SendSignals)
    edit_steps = verb(stepping.EditSteps)
    signals = verb(stepping.Signals)
    forget_signals = verb(stepping.ForgetSignals)
    signal_waiters = verb(stepping.SignalWaiters)


def requests() -> dict[str, type[Request[Any]]]:
    """Every request of the contract, by the name of its verb."""
    return {name: request for name, request in verbs().items() if name == request.verb}


def verbs() -> dict[str, type[Request[Any]]]:
    """The names of all verbs and acts, each with the request that its call is: `Request.called`."""
    found: dict[str, type[Request[Any]]] = {"stream_ends": producing.StreamEnds}
    for name, method in vars(Store).items():
        if (request := getattr(method, "request", None)) is not None:
            found[name] = request
    return found | dict.fromkeys(("edit_jobs", "move_jobs"), changing.ChangeJobs)
