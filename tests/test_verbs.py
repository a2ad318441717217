"""Every request of the contract is answered by every store, and known to every store around a store.

`docs/architecture.md` lists the places under "Add a verb"; a test here names a missing one. Otherwise a
wrapper would pass a new verb through unnoticed.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Job, NewJob, Ref, State
from penstock.errors import StoreUnavailable
from penstock.stores.contract import (
    ChangeJobs,
    Enqueue,
    Fetch,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    JobReschedule,
    JobRetry,
    Request,
    Store,
    StreamEnds,
    SyncRequest,
    SyncStore,
    Wait,
    WaitForEnd,
    requests,
    verbs,
)
from penstock.stores.encrypted import requests as encrypted
from penstock.stores.memory import MemoryStore
from penstock.stores.redis import handlers as redis
from penstock.stores.redis import store as redis_store
from penstock.stores.sql import store as sql_store
from penstock.testing import FaultyStore
from penstock.verify.crash_points import CrashPoints
from penstock.verify.ledger import recorded_store
from tests.cases import each
from tests.oracle import handlers as oracle
from tests.oracle import store as oracle_store

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"

#: What handlers call some fields.
ALIASES = {"name": "queue", "names": "queues", "specs": "entries", "spec": "flow", "change": "limits"}

Table = Mapping[type[Request[Any]], Any]

#: These change no job, or only what the ledger has from another verb; the ledger lets them pass.
NOT_IN_THE_LEDGER = {
    *("get", "wait_for_end", "stream_ends", "search"),
    *("queues", "parked", "stats", "partition", "batches", "workers"),
    *("extend", "promote", "prune", "drop", "flush_batch", "checkup", "announce", "retire"),
    *("entries", "put_entries", "pause_entries", "delete_entries"),
    *("steps", "signals", "forget_signals", "signal_waiters"),
    *("documents", "document_versions", "change_documents", "append_log", "read_log", "take_quota"),
    *("add_stats", "read_stats", "read_errors", "sample_depths", "read_depths", "queue_sizes"),
    *("get_flows", "flow_nodes", "list_flows", "advance_flows"),
}


SEEN = Job(NewJob("a", "t"), State.AVAILABLE, 1)


def in_tables(*tables: Table) -> set[str]:
    return {request.verb for table in tables for request in table}


#: The acts, each with what a request of it is made of.
ACTS = {
    "retry": JobRetry(Ref("q", "a")),
    "reschedule": JobReschedule(Ref("q", "a")),
    "discard": JobDiscard(Ref("q", "a")),
    "complete": JobCompletion(Ref("q", "a")),
    "edit_jobs": JobEdit(SEEN, SEEN.spec),
    "move_jobs": JobMove(SEEN, SEEN.spec),
}


@functools.cache
def called_in(folder: Path) -> set[str]:
    """The names of all methods that are called in the tests of a folder."""
    trees = (ast.parse(path.read_text("utf-8")) for path in folder.glob("*.py"))
    return {
        node.func.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


#: Only as methods of their own.
STREAMS = {StreamEnds.verb}

#: The places that know verbs, each with what finds those that it knows.
PLACES: dict[str, Callable[[], set[str]]] = {
    "tests/oracle/handlers.py": lambda: in_tables(oracle.HANDLERS, oracle_store._OWN) | STREAMS,
    "stores/sql/store.py": lambda: in_tables(sql_store.HANDLERS, sql_store._OWN) | STREAMS,
    "stores/redis/handlers.py": lambda: in_tables(redis.HANDLERS, redis_store._OWN) | STREAMS,
    "stores/encrypted/requests.py": lambda: in_tables(encrypted.PLANS) | STREAMS,
    "verify/ledger/recorded_store.py": lambda: in_tables(recorded_store._PLANS) | NOT_IN_THE_LEDGER,
    "tests/store": lambda: called_in(ROOT / "tests" / "store"),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_verb_of_the_contract_is_in_every_place(place: str) -> None:
    assert not requests().keys() - PLACES[place](), f"verbs that {place} lacks"


def test_a_verb_that_is_only_in_the_contract_is_missed_in_every_place() -> None:
    for place, known in PLACES.items():
        assert "polish" not in known(), place


def test_what_the_ledger_lets_pass_is_named_only_while_it_is_a_verb() -> None:
    assert requests().keys() >= NOT_IN_THE_LEDGER
    assert not NOT_IN_THE_LEDGER & in_tables(recorded_store._PLANS)


def test_the_page_of_the_architecture_lists_every_place() -> None:
    page = PAGE.read_text("utf-8")
    for place in PLACES:
        assert place in page, place


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────


def acts() -> Iterator[tuple[str, type[Request[Any]], Callable[..., Any]]]:
    """Each handler that gets the arguments of its request by their order."""
    for request, act in oracle.HANDLERS.items():
        yield f"oracle {request.verb}", request, act
    for request, verb in sql_store.HANDLERS.items():
        yield f"sql {request.verb}", request, verb.act
        if verb.probe not in (None, verb.act):
            yield f"sql {request.verb}, probe", request, verb.probe
    for request, act in redis.HANDLERS.items():
        yield f"redis {request.verb}", request, act


def test_a_handler_takes_the_fields_of_its_request_in_their_order() -> None:
    """One test, not one for each of the hundreds of handlers: a look at a signature takes no time."""
    for name, request, act in acts():
        parameters = list(inspect.signature(act).parameters.values())[1:]  # behind the store's own
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
            continue  # it has no use for them
        fields = request.__struct_fields__
        for parameter, field in zip(parameters, fields, strict=False):
            assert parameter.name in ("_", field) or ALIASES.get(parameter.name) == field, name
        assert len(parameters) >= len(fields), name
        assert all(one.default is not one.empty for one in parameters[len(fields) :]), name


# ── stores around a store ────────────────────────────────────────────────────────────────────────


def test_a_thread_may_ask_what_is_marked_so() -> None:
    marked = {name for name, request in requests().items() if issubclass(request, SyncRequest)}
    methods = {name for name in vars(SyncStore) if name[0] != "_"} - {"ask", "stream"}
    assert methods - ACTS.keys() <= marked


@each("verb", sorted(verbs()))
async def test_every_verb_passes_a_faulty_store(verb: str) -> None:
    """One that did not would escape the faults that tests inject."""
    faulty = FaultyStore(MemoryStore())
    faulty.fail(verb)
    with pytest.raises(StoreUnavailable):
        await _ask(faulty, verb)
    assert faulty.calls[verb] == 1


@each("verb", sorted(verbs().keys() - {StreamEnds.verb}))
async def test_every_verb_has_crash_points(verb: str) -> None:
    """`stream_ends` answers bit by bit and has no one moment at which it is done."""
    points = CrashPoints(MemoryStore())
    points.at(f"{verb}:1:before")
    with pytest.raises(StoreUnavailable):
        await _ask(points, verb)
    assert points.calls(verb) == 1


async def _ask(store: Store, verb: str) -> None:
    request = verbs()[verb]
    given = request(**dict.fromkeys(request.__struct_fields__))
    if verb in ACTS:
        given = ChangeJobs([ACTS[verb]])
    if isinstance(given, StreamEnds):
        async for _ in store.stream(given):
            pass
    else:
        await store.ask(given)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def test_a_call_of_acts_of_one_kind_has_their_name() -> None:
    """Metrics, faults and crash points know the acts by it."""
    assert verbs().keys() - requests().keys() == ACTS.keys()
    assert {verb: ChangeJobs([act]).called for verb, act in ACTS.items()} == {verb: verb for verb in ACTS}
    assert ChangeJobs(list(ACTS.values())).called == ChangeJobs([]).called == "change_jobs"


def test_an_act_has_a_method_with_its_arguments_and_its_page() -> None:
    for verb, act in ACTS.items():
        method = getattr(Store, verb)
        assert method.__name__ == verb
        if "seen" not in act.__struct_fields__:
            assert method.__doc__ == type(act).__doc__
            assert list(inspect.signature(method).parameters)[1:] == ["refs", *act.__struct_fields__[1:]]


async def test_a_verb_is_asked_as_a_request() -> None:
    """The method and the request are the same call."""
    store, (job,) = MemoryStore(), [NewJob("a-1", "t")]
    (new,) = await store.ask(Enqueue([job]))
    assert new.id == "a-1"
    (found,) = await store.get([Ref("default", "a-1")])
    assert found is not None
    assert store.sync.get([found.ref])[0] == found


def test_a_verb_has_the_signature_and_the_page_of_its_request() -> None:
    for name, request in requests().items():
        method = getattr(Store, name)
        assert method.__name__ == name == request.verb
        if request is not StreamEnds:
            fields = list(inspect.signature(method).parameters)[1:]
            assert fields == list(request.__struct_fields__)
            assert method.__doc__ == request.__doc__
    assert inspect.iscoroutinefunction(Store.fetch)
    assert inspect.signature(Store.fetch).parameters["limit"].kind is inspect.Parameter.KEYWORD_ONLY


def test_those_that_wait_are_no_calls_of_a_runner() -> None:
    for table in (oracle.HANDLERS, sql_store.HANDLERS, redis.HANDLERS):
        assert not {Wait, WaitForEnd} & set(table)
    assert Fetch in oracle.HANDLERS
