"""Every field of text or bytes is marked as secret or listed as clear, and every mark is true.

A mark is true if the store inside an encrypted store never gets the content of the field, and if the content
comes back clear in an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, get_args
from uuid import uuid4

import msgspec
import pytest
from msgspec.structs import replace

from penstock.core.job import Job, Lease, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import FlowMember, Partition
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.security import Secret
from penstock.encryption import Cipher, Keyring
from penstock.encryption.envelope import is_encrypted_text, is_envelope
from penstock.stores import contract
from penstock.stores.around import StoreAround, StorePlan
from penstock.stores.contract import Request, Store, answer_type, requests
from penstock.stores.encrypted import encrypted_store
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.encrypted.marked_parts import change_of
from penstock.stores.encrypted.requests import PLANS
from tests.encryption.marked_fields import CANARY, Field, fields_in, marked_values, planted
from tests.oracle import OracleStore

#: The fields of text that are clear, by the reason. A new field goes here only if nothing secret belongs in
#: it, and docs/encryption.md says so.
CLEAR = {
    "ids, queues and tasks: the store finds jobs by them": """
        BatchInfo.queue BatchInfo.task Batches.queue DepthRow.queue Drop.queue Enqueued.id Entries.queues
        Entry.last ErrorCount.job ErrorCount.task ErrorGroup.job ErrorGroup.queue ErrorGroup.task
        Fetched.kept FlowMember.id FlowMember.queue FlowNode.task FlushBatch.queue FlushBatch.task
        FlushBatch:answer Job.batch Job.members JobFilter.id JobFilter.not_tasks JobFilter.queues
        JobFilter.task KeptSignal.flow Lease.id Lease.queue NewFlow.id NewFlow.queue NewFlow.starts
        NewFlow.wakes NewJob.id NewJob.queue NewJob.task Parked.queue
        Parked.task Promote.queues Purge.queue QueueInfo.name QueueSize.queue QueueSizes.names
        QueueStats.name Queues.names ReadDepths.queue ReadErrors.queue ReadErrors.task ReadStats.queue
        ReadStats.task Reclaim.queues Ref.id Ref.queue SearchPage.away Settings.queue Share.queue
        Signal.flow StatsReport.queue StatsRow.queue StatsRow.task TaskCount.task TickResult.enqueued
        Wait.parked Wait.queues
    """,
    "names, keys and headers that users give: the store compares them": """
        AppendLog.log BatchInfo.key BatchTerms.key ChangeDocuments.kind Document.name DocumentChange.name
        DocumentVersions.kinds Documents.kind FlushBatch.key ForgetSignals.names Input.name
        JobFilter.headers JobFilter.hidden KeptSignal.key KeptSignal.name NewEntry.name NewFlow.name
        NewJob.headers Partition.key PartitionInfo.key QuotaRequest.name ReadLog.log RecordedStep.signal
        Signal.key Signal.name SignalWait.key SignalWait.name SignalWait.step SignalWaiter.step
        SignalWaiters.key SignalWaiters.name Signals.key Signals.name StepEdit.name StepRecord.name
        StepRemoval.name ReadSteps.names StoredStep.name StoredStep.signal Tenant.key
    """,
    "classes of errors": "AttemptError.kind ErrorCount.kind ErrorGroup.kind",
    "schedules and days": "DayCount.day Schedule.text Schedule.tz",
    "workers, as they announce themselves": """
        AttemptError.worker Fetch.worker Job.worker JobFilter.worker Reclaim.of
        Reclaim.worker Retire.worker StatsReport.source WorkerInfo.entries WorkerInfo.full_queues
        WorkerInfo.full_tasks WorkerInfo.handled WorkerInfo.host WorkerInfo.id WorkerInfo.identities
        WorkerInfo.queues WorkerInfo.stalled_queues WorkerInfo.state WorkerInfo.tasks WorkerInfo.version
        WorkerOffer.worker
    """,
    "random tokens": """
        AddToFlow.key Fetch.token Job.token Lease.token NewFlow.key Reclaim.token WorkerOffer.token
    """,
    "cursors: places in an order, and names as above": """
        DocumentPage.next Documents.after FlowPage.next ListFlows.after Prune.after Pruned.next
        Search.after SearchHit.after SearchPage.next Signals.after
    """,
    "words of the store, which quote nothing of a job": """
        Enqueued.cause Entry.unreadable Finding.way_out Finding.what Finding.why LimitChange.reset
        QueueInfo.away SetAside.cause SetAside.id SetAside.kind SetAside.queue
    """,
}


def reached(*request_types: type[Request[Any]]) -> list[Field]:
    """All fields that requests and answers reach, and the answers themselves."""
    found = []
    for request in request_types:
        answer = answer_type(request)
        found += [*fields_in(request), Field(f"{request.__name__}:answer", answer), *fields_in(answer)]
    return found


def broken(fields: list[Field], clear: set[str]) -> list[str]:
    """What is wrong with the marks of these fields."""
    marked = {field.name for field in fields if field.marks}
    texts = {field.name for field in fields if field.holds_text and not field.marks}
    return [
        *(f"{name} holds text or bytes, and is neither marked nor clear" for name in texts - clear),
        *(f"{name} is marked and clear" for name in marked & (clear | texts)),
        *(f"{name} is clear, and is no field of text" for name in clear - marked - texts),
    ]


def names(table: Mapping[str, str]) -> set[str]:
    return {name for line in table.values() for name in line.split()}


# ── all fields ───────────────────────────────────────────────────────────────────────────────────


def test_every_field_of_text_is_marked_or_clear() -> None:
    assert not broken(reached(*requests().values()), names(CLEAR))


class _Part(msgspec.Struct, frozen=True):
    data: bytes


class _New(Request[dict[str, list[_Part]]], frozen=True):
    """A made-up request."""

    secret: Annotated[bytes | None, Secret.PAYLOAD]
    parts: tuple[_Part | None, ...]
    number: int = 0


def test_a_field_that_nobody_has_thought_of_is_found() -> None:
    fields = reached(_New)
    (found,) = broken(fields, {"_New:answer"})
    assert found == "_Part.data holds text or bytes, and is neither marked nor clear"
    assert not broken(fields, {"_New:answer", "_Part.data"})


def test_the_list_of_clear_fields_has_no_others() -> None:
    fields, clear = reached(_New), {"_New:answer", "_Part.data"}
    assert broken(fields, {*clear, "_New.secret"}) == ["_New.secret is marked and clear"]
    for gone in ("_New.gone", "_New.number"):
        assert broken(fields, {*clear, gone}) == [f"{gone} is clear, and is no field of text"]


def test_the_encrypted_store_refuses_a_mark_for_which_it_has_no_rule() -> None:
    with pytest.raises(LookupError, match=r"_New\.secret: .*no rule"):
        change_of(_New, {})


#: The requests that carry nothing secret, either way.
PASSED_ON = """
    advance_flows announce batches change_flow checkup delete delete_entries document_versions drop
    flush_batch forget_signals get_flows list_flows parked promote prune purge queue_sizes queues
    read_depths read_stats retire sample_depths settings stats take_quota workers
"""


def test_a_request_is_passed_on_if_nothing_in_it_is_marked() -> None:
    assert {request.verb for request, plan in PLANS.items() if plan is None} == set(PASSED_ON.split())
    for request, plan in PLANS.items():
        assert (plan is None) == (not any(field.marks for field in reached(request))), request


# ── on the way in ────────────────────────────────────────────────────────────────────────────────


class Recorder(StoreAround):
    """Keeps what the store inside is asked."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[Request[Any]] = []

    def plan(self, request: Request[Any]) -> StorePlan[Any]:
        self.asked.append(request)
        return (yield request)

    def around(self, store: Store) -> Store:
        return Recorder(store)


def encrypted(inside: Store) -> Store:
    return encrypted_store(inside, Cipher(Keyring([bytes(32)])), "marks")


@pytest.fixture
def inside() -> Recorder:
    return Recorder(OracleStore(uuid4().hex))


def hidden(value: str | bytes) -> bool:
    """Whether this is encrypted or hashed."""
    if isinstance(value, bytes):
        return is_envelope(value)
    return is_encrypted_text(value) or value.startswith("~")


#: Found in the request, but the store inside is not asked for it.
KEPT_OUTSIDE = {"JobFilter.text"}
#: What a job that has not ended, and one that is leased, never has.
_UNDECIDED, _LEASED = {"Job.result"}, {"Job.result", "Job.reason", "Progress.note"}
#: Tested below: the jobs of its offer come from the store.
OFFERS = {"wait"}


def marks_of(kind: Any) -> set[str]:
    return {field.name for field in fields_in(kind) if field.marks}


def with_secrets() -> list[str]:
    return sorted(verb for verb, request in requests().items() if marks_of(request) and verb not in OFFERS)


def every_act(given: dict[Any, Callable[[], Any]]) -> contract.ChangeJobs:
    """A request of one act of each kind that has a marked field."""
    seen = given[Job]()
    new = replace(planted(NewJob, given), id=seen.id, queue="elsewhere")
    kinds = [kind for kind in get_args(contract.AnyAct) if marks_of(kind)]
    acts = [planted(kind, {**given, NewJob: lambda: new}) for kind in kinds]
    return contract.ChangeJobs(acts)


@pytest.mark.parametrize("verb", with_secrets())
async def test_what_is_marked_in_a_request_does_not_reach_the_store(verb: str, inside: Recorder) -> None:
    store = encrypted(inside)
    lease, seen = await leased(store, "held", unique=None), await failed(store)
    given: dict[Any, Callable[[], Any]] = {
        Lease: lambda: lease,
        Ref: lambda: seen.ref,
        Job: lambda: seen,
        State: lambda: State.DEAD,
        Schedule: lambda: Schedule("every 1h"),
        int: lambda: 0,
    }
    request = every_act(given) if verb == "change_jobs" else planted(requests()[verb], given)
    secrets = {field.name for field, _ in marked_values(request)}
    assert secrets == marks_of(type(request)) - _UNDECIDED

    inside.asked.clear()
    await store.ask(request)
    assert CANARY not in repr(inside.asked)
    passed = list(marked_values([one for one in inside.asked if type(one) is type(request)]))
    assert {field.name for field, _ in passed} >= secrets - KEPT_OUTSIDE
    assert all(hidden(value) for _, value in passed)


# ── on the way out ───────────────────────────────────────────────────────────────────────────────


Ask = Callable[[Store], Awaitable[Any]]


async def ended(store: Store) -> Job:
    """A dead job with a secret wherever a job can have one."""
    (answer,) = await store.settle([settlement(await leased(store, "ended"), State.DEAD)])
    assert answer is contract.Settled.APPLIED
    return await job_of(store, "ended")


async def failed(store: Store) -> Job:
    """The same, to be tried again: it has no result."""
    lease = await leased(store, "failed", partition=Partition("one"))
    (answer,) = await store.settle([settlement(lease, State.AVAILABLE)])
    assert answer is contract.Settled.APPLIED
    return await job_of(store, "failed")


def settlement(lease: Lease, state: State) -> contract.Settlement:
    to = replace(planted(Transition, {State: lambda: state, int: lambda: 0}), keep=60_000)
    return contract.Settlement(lease, to, b'["%s"]' % CANARY.encode())


async def queued(store: Store, id: str, **options: Any) -> Job:
    await store.enqueue([replace(planted(NewJob, {}), id=id, **options)])
    return await job_of(store, id)


async def job_of(store: Store, id: str) -> Job:
    (job,) = await store.find(id)
    return job


async def leased(store: Store, id: str, **options: Any) -> Lease:
    """The lease of a new job that has told its progress."""
    await queued(store, id, **options)
    (job,) = (await fetched(store)).jobs
    assert job.id == id
    heartbeat = planted(contract.HeartbeatRequest, {Lease: lambda: job.lease, int: lambda: 60_000})
    assert await store.extend([heartbeat]) == [contract.LeaseStatus.HELD]
    return job.lease


async def fetched(store: Store, **options: Any) -> contract.Fetched:
    share = contract.Share("default", 1, 1)
    return await store.fetch([share], limit=1, lease=60_000, worker="w", token=uuid4().hex, **options)


async def _reclaimed(store: Store) -> contract.Fetched:
    await failed(store)
    await fetched(store)
    return await store.reclaim([], limit=1, lease=1, worker="v", token="t", of=["w"])


async def _streamed(store: Store) -> Any:
    job = await ended(store)
    return [part async for part in store.stream_ends([job.ref], timeout=0)]


def entry() -> NewEntry:
    made: NewEntry = planted(NewEntry, {Schedule: lambda: Schedule("every 1h")})
    return made


async def _entries(store: Store) -> contract.Timetable:
    await store.put_entries([entry()])
    return await store.entries()


async def _paused_entries(store: Store) -> Any:
    await store.put_entries([entry()])
    return await store.pause_entries([entry().ref], paused=True)


async def _documents(store: Store) -> Any:
    await store.change_documents("kind", [planted(contract.DocumentChange, {int: lambda: 0})])
    return await store.documents("kind")


async def _log(store: Store) -> Any:
    await store.append_log("log", [CANARY.encode()])
    return await store.read_log("log")


async def _errors(store: Store) -> Any:
    await queued(store, "queued")
    report = replace(planted(contract.StatsReport, {}), queue="default")
    assert await store.add_stats([report]) == [True]
    return await store.read_errors()


async def _nodes(store: Store) -> Any:
    node = NewJob("node", "t", flow=FlowMember("default", "plain", 0))
    info = await store.ask(planted(contract.PutFlow, {int: lambda: 0, NewJob: lambda: node}))
    (job,) = (await fetched(store)).jobs
    await store.settle([settlement(job.lease, State.COMPLETED)])
    return await store.flow_nodes(info.ref, [0])


def record(lease: Lease, name: str) -> contract.StepRecord:
    return contract.StepRecord(lease, name, CANARY.encode(), 60_000)


async def _recorded(store: Store) -> Any:
    lease = await leased(store, "held")
    await store.record_steps([record(lease, "step")])
    return await store.record_steps([replace(record(lease, "step"), value=b"other")])


def wait(lease: Lease) -> contract.SignalWait:
    return contract.SignalWait(lease, "step", "name", "key", 60_000)


def signal() -> contract.Signal:
    return contract.Signal("name", "key", CANARY.encode())


async def _awaited(store: Store) -> Any:
    lease = await leased(store, "held")
    await store.send_signals([signal()])
    return await store.await_signals([wait(lease)])


async def _forgotten(store: Store) -> Any:
    lease = await leased(store, "held")
    await store.await_signals([wait(lease)])
    await store.send_signals([signal()])
    return await store.forget_steps([contract.StepRemoval(lease, "step", 60_000, waiting=True)])


async def _steps(store: Store) -> Any:
    lease = await leased(store, "held")
    await store.record_steps([record(lease, "step")])
    await store.await_signals([wait(lease)])
    await store.edit_steps(lease.ref, [contract.StepEdit("edited", CANARY.encode())])
    return await store.steps(lease.ref)


async def _signals(store: Store) -> Any:
    await store.send_signals([signal()])
    return await store.signals()


async def _waiters(store: Store) -> Any:
    lease = await leased(store, "held")
    await store.await_signals([wait(lease)])
    await store.record_steps([record(lease, "step!of")])
    return await store.signal_waiters("name", "key")


async def _of_ended(store: Store, ask: Callable[[Job], Awaitable[Any]]) -> Any:
    return await ask(await ended(store))


async def _of_failed(store: Store, ask: Callable[[Job], Awaitable[Any]]) -> Any:
    return await ask(await failed(store))


#: How to get an answer that has all of its secrets.
ANSWERS: dict[str, Ask] = {
    "get": lambda store: _of_ended(store, lambda job: store.get([job.ref])),
    "wait_for_end": lambda store: _of_ended(store, lambda job: store.wait_for_end([job.ref], timeout=0)),
    "stream_ends": _streamed,
    "search": lambda store: _of_ended(store, lambda _: store.search(contract.JobFilter(text=CANARY.upper()))),
    "partition": lambda store: _of_failed(store, lambda job: store.partition(job.ref)),
    "fetch": lambda store: _of_failed(store, lambda _: fetched(store)),
    "reclaim": _reclaimed,
    "entries": _entries,
    "put_entries": lambda store: store.put_entries([entry()]),
    "pause_entries": _paused_entries,
    "documents": _documents,
    "read_log": _log,
    "read_errors": _errors,
    "flow_nodes": _nodes,
    "record_steps": _recorded,
    "await_signals": _awaited,
    "forget_steps": _forgotten,
    "steps": _steps,
    "signals": _signals,
    "signal_waiters": _waiters,
}
#: What such an answer never has.
NEVER = {"partition": _UNDECIDED, "fetch": _LEASED, "reclaim": _LEASED}
#: These come back as the hashes that they are stored as.
HASHED = {Secret.UNIQUE_KEY, Secret.ERROR_GROUP_NAME}


def test_every_answer_with_secrets_is_asked_for() -> None:
    assert ANSWERS.keys() == {verb for verb, request in requests().items() if marks_of(answer_type(request))}


@pytest.mark.parametrize("verb", ANSWERS)
async def test_what_is_marked_in_an_answer_comes_back_clear(verb: str, inside: Recorder) -> None:
    answer = await ANSWERS[verb](encrypted(inside))
    assert CANARY not in repr(inside.asked)
    found = list(marked_values(answer))
    back = {field.name for field, value in found if CANARY in str(value) or field.marks <= HASHED}
    assert back == marks_of(answer_type(requests()[verb])) - NEVER.get(verb, set())
    for field, value in found:
        assert hidden(value) == (field.marks <= HASHED), field.name


async def test_the_jobs_of_an_offer_are_clear(inside: Recorder) -> None:
    """A store gives them to `take`, which a request carries."""
    await failed(encrypted(inside))
    taken: list[Job] = []

    def take(found: contract.Fetched) -> contract.WorkerOffer | None:
        taken.extend(found.jobs)
        return offer if len(taken) == 1 else None

    offer = contract.WorkerOffer("w", "t", 60_000, take)
    sent = FieldCipher(Cipher(Keyring([bytes(32)])), "marks").decrypting_offer(offer)
    stored = await fetched(inside)
    assert sent.take is not None
    following = sent.take(stored)
    assert following is not None
    assert following.take is not None
    assert following.take(stored) is None
    assert all(hidden(value) for _, value in marked_values(stored))
    assert {field.name for field, value in marked_values(taken) if CANARY in str(value)} == marks_of(Job) - {
        *_LEASED,
        "UniqueKey.key",
    }
