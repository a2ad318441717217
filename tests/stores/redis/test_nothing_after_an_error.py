"""A script that answers an error has written nothing, whichever key of its queues holds something else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.unique import UniqueKey
from penstock.errors import StoreCorrupt
from penstock.stores.contract import (
    DocumentChange,
    EnqueueStatus,
    JobEdit,
    JobMove,
    Replacement,
    Settlement,
    Share,
    Signal,
    StepEdit,
    StepRecord,
    StepRemoval,
    Tick,
)
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.unusable_queues import CorruptQueues
from tests.servers import RedisServer
from tests.store.facts import COMPLETED, DAY, HOUR, LEASE, MINUTE, PARKED, end, new, retryable
from tests.store.flow_facts import flow_of, nodes_of
from tests.store.redis_corruptor import RedisCorruptor

#: All keys of the test, with what they hold: DUMP, and the same without the order that hash tables give it.
EVERYTHING = """
local found = {}

local function content(key, dump)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'set' and kind ~= 'hash' then return dump end
  local names = redis.call(kind == 'set' and 'SMEMBERS' or 'HKEYS', key)
  table.sort(names)
  return cmsgpack.pack({names, kind == 'hash' and redis.call('HMGET', key, unpack(names))})
end

for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local n, dump = #found, redis.call('DUMP', key)
  found[n + 1], found[n + 2], found[n + 3] = key, content(key, dump), dump
end
return found
"""


@dataclass(frozen=True)
class Held:
    """What a key holds."""

    content: bytes
    dump: bytes = field(compare=False, repr=False)


#: Keys of a queue that need not be there.
MAY_COME = (
    *("again/0", "batches", "days", "due", "ends", "ended/3", "ended/4", "ended/5", "expiring", "held"),
    *("leases", "offers", "out", "over", "parked", "parked/t", "partition/new", "partitions", "periodic"),
    *("profiles", "ready", "state/0", "state/1", "state/8", "state/10", "state/9+", "tenants", "tenants/0"),
    *("tokens", "unique", "unique/until", "waiters", "waiters/parked", "watchers", "partitions/over"),
    *("batch/t\0new", "asides", "ghosts"),
)


class World:
    """Queues with jobs in every state, and a waiter on two of them."""

    def __init__(self, store: RedisStore, corruptor: RedisCorruptor, client: Any, prefix: str) -> None:
        self.store = store
        self.prefix = prefix
        self.corruptor = corruptor
        self.client = client
        self._read = self.client.register_script(EVERYTHING)
        self.jobs: dict[str, Job] = {}

    async def build(self) -> None:
        store = self.store
        partition = Partition("k", ordered=True)
        await self._ready("running", new("running"))
        await self._ready("retryable", new("retryable", retention=DAY), retryable())
        await self._ready("parked", new("parked", task="unknown"), PARKED)
        await self._ready("completed", new("completed"), COMPLETED)
        await store.enqueue(
            [
                new("available"),
                new("scheduled", delay=MINUTE),
                new("unique", unique=UniqueKey("u", period=HOUR)),
                new("expiring", expires_in=HOUR),
                new("admitted", partition=partition),
                new("waiting", partition=partition),
                new("tenant", tenant=Tenant("tenant"), queue="fair"),
                new("member", batch_terms=BatchTerms("g", size=9, wait=HOUR), payload=b"[1]"),
                new("there", queue="other"),
            ]
        )
        first = flow_of(id="first", key="first")
        await store.put_flow(first, nodes_of(first, 2, [(0, 1)]))
        await store.put_entries([NewEntry("entry", NewJob("", "t"), Schedule.of(every="1m"))])
        for name in ("available", "scheduled", "waiting", "parked", "completed", "member", "unique"):
            (job,) = await store.get([Ref("default", name)])
            assert job is not None
            self.jobs[name] = job
        offer = f"{LEASE}\noffered\nw9\n" + "\n".join(self._queue(name) for name in ("idle", "second"))
        await store.enqueue([new("gone", queue="idle")])
        await store.delete([Ref("idle", "gone")])
        for name in ("idle", "second"):
            self.client.zadd(self.corruptor.key(name, "waiters"), {"channel": 2**50})
            self.client.hset(self.corruptor.key(name, "offers"), "channel", offer)

    def _queue(self, name: str) -> str:
        return self.corruptor.key(name, "").decode()[:-1]

    async def _ready(self, name: str, spec: NewJob, to: Any = None) -> None:
        await self.store.enqueue([spec])
        share = [Share("default", 1, 1)]
        found = await self.store.fetch(share, limit=1, lease=LEASE, worker="w1", token=f"t-{name}")
        (self.jobs[name],) = found.jobs
        if to is not None:
            await end(self.store, found.jobs[0], to)

    def everything(self) -> dict[bytes, Held]:
        found = self._read(args=[self.prefix])
        return {key: Held(*held) for key, *held in zip(found[::3], found[1::3], found[2::3], strict=True)}

    def put_back(self, before: dict[bytes, Held], now: dict[bytes, Held]) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            for key in now.keys() - before.keys():
                pipe.delete(key)
            for key, held in before.items():
                if now.get(key) != held:
                    pipe.restore(key, 0, held.dump, replace=True)
            pipe.execute()
        self.store._context.corrupt = CorruptQueues()


Verb = Callable[[World], Awaitable[Any]]


def enqueued(*jobs: Callable[[], NewJob]) -> Verb:
    return lambda world: world.store.enqueue([job() for job in jobs])


VERBS: dict[str, Verb] = {
    "enqueue a plain job": enqueued(lambda: new("n")),
    "enqueue for a waiter": enqueued(lambda: new("n", queue="idle")),
    "enqueue two": enqueued(lambda: new("n"), lambda: new("m", queue="other")),
    "enqueue one that expires": enqueued(lambda: new("n", expires_in=HOUR)),
    "enqueue two that expire": enqueued(*[lambda i=i: new(i, expires_in=HOUR) for i in "nm"]),
    "enqueue a scheduled one": enqueued(lambda: new("n", delay=HOUR)),
    "enqueue one of each kind": enqueued(
        lambda: new("n"),
        lambda: new("m", delay=HOUR),
        lambda: new("o", expires_in=HOUR),
        lambda: new("p", queue="fair"),
        lambda: new("q", delay=HOUR, queue="other"),
    ),
    "enqueue two scheduled ones": enqueued(lambda: new("n", delay=HOUR), lambda: new("m", delay=MINUTE)),
    "enqueue a unique one": enqueued(lambda: new("n", unique=UniqueKey("v", period=HOUR))),
    "enqueue in a partition": enqueued(lambda: new("n", partition=Partition("new"))),
    "enqueue behind another": enqueued(lambda: new("n", partition=Partition("k", ordered=True))),
    "enqueue of a tenant": enqueued(lambda: new("n", tenant=Tenant("x"), queue="fair")),
    "enqueue into a batch": enqueued(lambda: new("n", batch_terms=BatchTerms("new", 9, HOUR), payload=b"1")),
    "enqueue what fills a batch": enqueued(
        lambda: new("n", batch_terms=BatchTerms("g", 2, HOUR), payload=b"1")
    ),
    "replace the holder of a key": enqueued(
        lambda: new("n", unique=UniqueKey("u", period=HOUR, replace=3), delay=HOUR)
    ),
    "purge": lambda world: world.store.purge("default", [State.COMPLETED]),
    "edit": lambda world: world.store.edit_jobs(
        [JobEdit(world.jobs["scheduled"], new("scheduled", payload=b"[2]"))]
    ),
    "move": lambda world: world.store.move_jobs(
        [JobMove(world.jobs["scheduled"], new("scheduled", queue="other", delay=HOUR))]
    ),
    "enqueue in the place of another": lambda world: world.store.replace_jobs(
        [Replacement(Ref("default", "completed"), new("n"))]
    ),
    "settings": lambda world: world.store.settings("default", limits=LimitChange(max_running=1)),
    "put an entry": lambda world: world.store.put_entries(
        [NewEntry("new", NewJob("", "t"), Schedule.of(every="1m"))]
    ),
}


def settled(to: Transition) -> Verb:
    return lambda world: world.store.settle([Settlement(world.jobs["running"].lease, to)])


VERBS |= {
    "settle as completed": settled(COMPLETED),
    "settle and forget": settled(Transition(State.COMPLETED)),
    "settle as retryable": settled(retryable()),
    "settle as parked": settled(PARKED),
}


async def ticked(world: World) -> Any:
    (entry,) = (await world.store.entries(["default"])).entries
    run = (new("n", delay=HOUR),)
    return await world.store.tick([Tick(entry.ref, entry.revision, entry.watermark, 1, 0, jobs=run)])


def put_flow(world: World) -> Awaitable[Any]:
    flow = flow_of(id="flow", key="flow")
    return world.store.put_flow(flow, nodes_of(flow, 2, [(0, 1)]))


VERBS |= {
    "tick": ticked,
    "pause an entry": lambda world: world.store.pause_entries([Ref("default", "entry")], paused=True),
    "record a step": lambda world: world.store.record_steps(
        [StepRecord(world.jobs["running"].lease, "step", b"1", LEASE)]
    ),
    "forget a step": lambda world: world.store.forget_steps(
        [StepRemoval(world.jobs["running"].lease, "step", LEASE)]
    ),
    "edit a step": lambda world: world.store.edit_steps(Ref("default", "parked"), [StepEdit("step", b"1")]),
    "forget a signal": lambda world: world.store.forget_signals([("signal", "", None)]),
    "replace a signal": lambda world: world.store.send_signals(
        [Signal("signal", "", b"1", keep=HOUR, most=9, replace=True)]
    ),
    "send a signal": lambda world: world.store.send_signals([Signal("signal", "", b"1", keep=HOUR, most=9)]),
    "put a flow": put_flow,
    "change a document": lambda world: world.store.change_documents("kind", [DocumentChange("name", b"1")]),
    "append to a log": lambda world: world.store.append_log("log", [b"1"], keep=9),
}

#: By which operators change a job.
ACTS: dict[str, Callable[[RedisStore, Ref], Awaitable[Any]]] = {
    "cancel": lambda store, ref: store.cancel([ref], reason="not wanted"),
    "retry": lambda store, ref: store.retry([ref]),
    "reschedule": lambda store, ref: store.reschedule([ref], delay=HOUR),
    "make due": lambda store, ref: store.reschedule([ref]),
    "delete": lambda store, ref: store.delete([ref], running=True),
    "discard": lambda store, ref: store.discard([ref]),
    "complete": lambda store, ref: store.complete([ref], result=b"1"),
}
JOBS = (
    *("running", "retryable", "parked", "completed", "available", "scheduled", "unique", "expiring"),
    *("admitted", "waiting", "member"),
)


def act_of(verb: str, name: str) -> Verb:
    return lambda world: ACTS[verb](world.store, Ref("default", name))


VERBS |= {f"{verb} the {name} job": act_of(verb, name) for verb in ACTS for name in JOBS}


@pytest.fixture
async def world(
    store: RedisStore, redis: RedisServer, corruptor: RedisCorruptor, prefix: str
) -> AsyncIterator[World]:
    made = World(store, corruptor, redis.client(), prefix)
    made.client.flushall()  # or each look at everything passes by what other tests have left
    listener = made.client.pubsub()
    listener.subscribe("channel")
    listener.get_message(timeout=5)
    await made.build()
    yield made
    listener.close()
    made.client.close()


async def fails(world: World, verb: Verb) -> bool:
    """Whether the call says that it failed: by an error, or for each job."""
    try:
        answers = await verb(world)
    except StoreCorrupt:
        return True
    statuses = [getattr(one, "status", None) for one in answers] if isinstance(answers, list) else []
    return bool(statuses) and all(status is EnqueueStatus.FAILED for status in statuses)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_call_that_fails_has_changed_nothing(world: World, verb: str) -> None:
    before = world.everything()
    assert not await fails(world, VERBS[verb])
    touched = world.everything()
    if touched == before:
        return  # the job is in a state that this does not concern
    world.put_back(before, touched)
    queues = {key.rpartition(b"}:")[0] for key in touched if touched[key] != before.get(key)}
    keys = {key for key in {*before, *touched} if key.rpartition(b"}:")[0] in queues}
    keys |= {queue + b"}:" + name.encode() for queue in queues for name in MAY_COME}
    changed: dict[bytes, list[bytes]] = {}
    failures = 0
    for key in sorted(keys):
        world.client.delete(key)
        world.client.set(key, b"somebody else's")
        spoiled = world.everything()
        failed = await fails(world, VERBS[verb])
        now = world.everything()
        failures += failed
        if failed and now != spoiled:
            changed[key] = [one for one in {*spoiled, *now} if spoiled.get(one) != now.get(one)]
        world.put_back(before, now)
    assert failures
    assert changed == {}
