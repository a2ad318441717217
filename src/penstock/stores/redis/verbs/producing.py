"""enqueue, get, cancel, and what a wait for results asks."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import EnqueueUnknown, StoreCorrupt, StoreError, StoreUnavailable
from penstock.core.job import Job, NewJob, Ref, State
from penstock.stores.contract import Enqueued, Verdict
from penstock.stores.redis.context import (
    AWAY,
    BATCH,
    HEAVY,
    MOST_BYTES,
    SHARED,
    Ground,
    Talk,
    any_of,
    ask,
    chunks,
    each,
    id_list,
    in_bytes,
    isolated,
    parts_of,
    sure,
    whole,
)
from penstock.stores.redis.keys import id_of, packed
from penstock.stores.redis.reading import shown
from penstock.stores.redis.records import STATES, UNWRITABLE, form_of, tail_of
from penstock.stores.redis.wire.calls import Acked, Call
from penstock.stores.redis.wire.faults import ReplyLost
from penstock.stores.text_encoding import storable

__all__ = [
    "cancel",
    "ended_ones",
    "enqueue",
    "get",
    "highest",
    "known",
    "listing",
    "register",
    "states_of",
    "tell_news",
]

_VERDICTS = {
    ord("n"): Verdict.NEW,
    ord("x"): Verdict.EXISTS,
    ord("c"): Verdict.CLOSED,
    ord("d"): Verdict.DUPLICATE,
    ord("f"): Verdict.FULL,
    ord("r"): Verdict.REPLACED,
}
_OF_ANOTHER = (Verdict.DUPLICATE, Verdict.REPLACED)
_N, _NEW = ord("n"), Verdict.NEW
#: A queue, and the places of the questions that are about it.
_Part = tuple[str, Sequence[int]]
#: In a call over several servers there is room for so many batches behind each job.
_BATCHES = 32
#: What a queue may be called.
_NAME = re.compile(rb"[A-Za-z0-9._:@+=~-]{1,128}").fullmatch
#: How many queues one script may span: their numbers are bytes.
_QUEUES = 250


def enqueue(ground: Ground, jobs: Sequence[NewJob]) -> Talk[list[Enqueued]]:
    """A batch that was split says of each job what became of it; one that was not raises what went wrong."""
    if not jobs:
        return []
    unlisted = {job.queue for job in jobs} - ground.listed
    if unlisted:  # first: a queue that has jobs is on the list
        yield from register(ground, unlisted)
    if ground.clustered and ground.steered:
        yield from highest(ground)
    enqueued: list[Enqueued | None] = [None] * len(jobs)
    new: set[str] = set()
    parts = _parts(ground, jobs)
    batches = [[jobs[place] for place in part] for part in parts]
    spread = ground.clustered and len(parts) > 1 and len(jobs) <= BATCH
    room = _BATCHES if spread and any(job.group is not None for job in jobs) else 1
    try:
        calls = [
            _enqueue_call(ground, batch, [room * place for place in part] if spread else ())
            for part, batch in zip(parts, batches, strict=True)
        ]
    except UNWRITABLE:
        return (yield from _without_unwritable(ground, jobs))
    answers = yield calls
    if any(isinstance(answer, StoreCorrupt) for answer in answers):  # the next ones go queue by queue
        ground.spoiled.met()
    _raise_whole(answers, jobs)
    for part, batch, answer in zip(parts, batches, answers, strict=True):
        for place, one in zip(part, _verdicts(ground, batch, answer, new), strict=True):
            enqueued[place] = one
    if new:  # somebody may have dropped the queue since it was put on the list
        try:
            yield from register(ground, new)
        except StoreUnavailable:  # they are stored all the same; the next enqueue puts it on the list
            ground.listed -= new
    return [one for one in enqueued if one is not None]


def _without_unwritable(ground: Ground, jobs: Sequence[NewJob]) -> Talk[list[Enqueued]]:
    """All but those that are none that a record can hold."""
    failed: dict[int, Enqueued] = {}
    for n, job in enumerate(jobs):
        try:
            _enqueue_call(ground, [job], ())
        except UNWRITABLE as error:
            failed[n] = Enqueued(Verdict.FAILED, job.id, cause=f"it cannot be written: {error}")
    stored = iter((yield from enqueue(ground, [job for n, job in enumerate(jobs) if n not in failed])))
    return [failed[n] if n in failed else next(stored) for n in range(len(jobs))]


def _parts(ground: Ground, jobs: Sequence[NewJob]) -> list[Sequence[int]]:
    """Which jobs go together in one script: their places."""
    parts = _parts_by_count(ground, jobs)
    sizes = [len(job.payload) for job in jobs]
    if sum(sizes) <= MOST_BYTES:
        return parts
    return [lighter for part in parts for lighter in in_bytes(part, sizes)]


def _parts_by_count(ground: Ground, jobs: Sequence[NewJob]) -> list[Sequence[int]]:
    first = jobs[0].queue
    places = range(len(jobs))
    if all(job.queue == first for job in jobs):
        return chunks(places, BATCH)
    if not ground.apart:
        parts = chunks(places, BATCH)
        if all(len({jobs[place].queue for place in part}) <= _QUEUES for part in parts):
            return parts
    return [part for _, part in parts_of([job.ref for job in jobs], BATCH)]


def _enqueue_call(ground: Ground, jobs: Sequence[NewJob], places: Sequence[int]) -> Call:
    """`places`: where these stand in a call over several servers, whose order their generations keep."""
    numbers: dict[str, int] = {}
    profiles: dict[bytes, bytes] = {}
    args: list[bytes | str | int] = []
    write = ground.profiles.write
    for job in jobs:
        number = numbers.get(job.queue)
        if number is None:
            number = numbers[job.queue] = len(numbers) + 1
        digest, text = write(job)
        profiles[digest] = text
        args += (packed(job.id), form_of(job, number), tail_of(job, digest))
    head: list[bytes | str | int] = [ground.floor, struct.pack(f"<{len(places)}H", *places), len(profiles)]
    for pair in profiles.items():
        head += pair
    return ground.call("enqueue", list(numbers), [*head, *args], repeatable=False, replicas=ground.replicas)


def known(ground: Ground) -> Talk[list[str]]:
    """All queues, by name. Where the list of a Cluster is away, those that this store object has met."""
    key = ground.keys.queues
    (names,) = yield from each(ground, [(SHARED, ask(key, "SMEMBERS", key))])
    if names is AWAY:
        met = (ground.met | ground.listed) - {SHARED}
        if not met:
            raise ground.unavailable([SHARED])
        return sorted(met)
    return sorted(name.decode() for name in names if _is_name(name))


def _is_name(name: bytes) -> bool:
    """What else is on the list is none of ours."""
    return _NAME(name) is not None


def highest(ground: Ground) -> Talk[None]:
    """Learn the highest generation of all queues. It is time that orders jobs over queues; where a test has
    stopped it, this does."""
    names = yield from known(ground)
    calls = []
    for name in names:
        key = ground.keys.queue(name)
        calls.append((name, ask(key, "HGET", key + b":meta", "generation")))
    found = (yield from each(ground, calls)) if calls else []
    ground.floor = max([ground.floor, *(whole(one) for one in found if one is not AWAY)])


def register(ground: Ground, queues: set[str]) -> Talk[None]:
    """Put names on the list of all queues. Where that is away, who asks for its return does it then."""
    (done,) = yield from each(ground, [(SHARED, listing(ground, queues))])
    if done is AWAY:
        ground.met |= queues
    else:
        ground.listed |= queues


def listing(ground: Ground, queues: set[str]) -> Call:
    return ask(ground.keys.queues, "SADD", ground.keys.queues, *sorted(queues))


def _raise_whole(answers: Sequence[Any], jobs: Sequence[NewJob]) -> None:
    """What is so of all parts is raised: nothing was stored, or nobody knows of any."""
    kinds = {isinstance(answer, ReplyLost) for answer in answers if isinstance(answer, Exception)}
    if len(kinds) != 1 or not all(isinstance(answer, Exception) for answer in answers):
        return
    if kinds == {True}:
        raise EnqueueUnknown([job.id for job in jobs], str(answers[0])) from answers[0]
    if len({type(answer) for answer in answers}) == 1:
        raise answers[0]


def _verdicts(ground: Ground, jobs: Sequence[NewJob], answer: Any, new: set[str]) -> list[Enqueued]:
    if isinstance(answer, Exception):
        verdict = Verdict.UNKNOWN if isinstance(answer, ReplyLost) else Verdict.FAILED
        return [Enqueued(verdict, job.id, cause=str(answer)) for job in jobs]
    kept, cause = True, ""
    if isinstance(answer, Acked):
        kept = answer.replicas >= ground.replicas
        cause = f"{answer.replicas} of {ground.replicas} replicas have confirmed it in time"
        answer = answer.reply
    highest, new_queues, letters, *holders = answer
    ground.floor = max(ground.floor, int(highest))
    if new_queues:
        names = list(dict.fromkeys(job.queue for job in jobs))
        new |= {names[number - 1] for number in new_queues}
    answers = [
        Enqueued(_NEW, job.id) if letter == _N else _verdict(job, letter, holders)
        for job, letter in zip(jobs, letters, strict=True)
    ]
    if kept:
        return answers
    written = (_NEW, Verdict.REPLACED)
    return [
        Enqueued(Verdict.UNREPLICATED, one.id, cause=cause) if one.verdict in written else one
        for one in answers
    ]


def _verdict(job: NewJob, letter: int, holders: list[bytes]) -> Enqueued:
    verdict = _VERDICTS[letter]
    if verdict is Verdict.FULL:
        waits, retry_after, size = map(int, holders.pop(0).split())
        return Enqueued(verdict, job.id, retry_after, size=size, waits=waits == 1)
    return Enqueued(verdict, id_of(holders.pop(0)) if verdict in _OF_ANOTHER else job.id)


def get(ground: Ground, refs: Sequence[Ref]) -> Talk[list[Job | None]]:
    parts = parts_of(refs, BATCH)
    found: list[Job | None] = [None] * len(refs)
    while parts:
        answers = sure((yield [ground.call("get", [q], id_list(refs, part)) for q, part in parts]))
        rest: list[_Part] = []
        for (queue, part), answer in zip(parts, answers, strict=True):
            told = len(answer) // 2
            there = [n for n in range(told) if answer[2 * n] is not None]
            rows = [(packed(refs[part[n]].id), answer[2 * n], answer[2 * n + 1]) for n in there]
            jobs = yield from shown(ground, queue, rows)
            for n, job in zip(there, jobs, strict=True):
                found[part[n]] = job
            if told < len(part):  # the answer became so large that it stopped
                rest.append((queue, part[told:]))
        parts = rest
    return found


def states_of(
    ground: Ground, script: str, refs: Sequence[Ref], args: Sequence[bytes | str | int]
) -> Talk[tuple[list[State | None], int]]:
    """A script that answers a letter per job, over refs of any queues; and the sum of its counts, if it has
    any."""
    parts = parts_of(refs, HEAVY)
    found: list[State | None] = [None] * len(refs)
    total = 0
    while parts:
        calls = [ground.call(script, [queue], [*args, *id_list(refs, part)]) for queue, part in parts]
        answers = sure((yield calls))
        rest: list[_Part] = []
        for (queue, part), answer in zip(parts, answers, strict=True):
            if isinstance(answer, list):
                total += answer[0]
                if len(answer) > 2:
                    ground.floor = max(ground.floor, int(answer[2]))
                answer = answer[1]
            for place, letter in zip(part, answer.decode(), strict=False):
                found[place] = None if letter == "-" else STATES[int(letter)]
            if len(answer) < len(part):  # it had to do with so many members of batches that it stopped
                rest.append((queue, part[len(answer) :]))
        parts = rest
    return found, total


def cancel(ground: Ground, refs: Sequence[Ref], reason: str) -> Talk[list[State | None]]:
    found, asked = yield from states_of(ground, "cancel", refs, [storable(reason).encode()])
    if asked:
        yield from tell_news(ground, "cancels")
    return found


def tell_news(ground: Ground, what: str) -> Talk[None]:
    """Count it, then tell all who wait. If we die before that, heartbeats and safety looks find it out."""
    keys = ground.keys
    count = ask(keys.news, "HINCRBY", keys.news, what, 1)
    tell = ask(keys.news, "PUBLISH", keys.news_channel, what)
    try:
        yield from each(ground, [(SHARED, count), (SHARED, tell)])
    except StoreUnavailable:
        raise
    except StoreError:  # somebody has written over the count: it goes on from more than anybody has heard
        (now,) = yield from each(ground, [(SHARED, ground.shared_call("now", keys.news, ()))])
        if now is not AWAY:
            anew = ask(keys.news, "HSET", keys.news, what, int(now))
            yield from each(ground, [(SHARED, anew), (SHARED, tell)])


@isolated
def ended_ones(
    ground: Ground, refs: Sequence[Ref], channel: str, seconds: float
) -> Talk[dict[Ref, Job | None]]:
    """Those (each once) that have ended or are gone; the channel hears of the others for so long."""
    open = yield from _open_ones(
        ground, refs, channel, max(0, int(seconds * 1000))
    )  # or of which nobody knows
    over = [ref for ref in refs if ref not in open]
    jobs = (yield from get(ground, over)) if over else []
    # one that was retried in this moment is open again
    return {ref: job for ref, job in zip(over, jobs, strict=True) if job is None or job.ended}


def _open_ones(ground: Ground, refs: Sequence[Ref], channel: str, timeout: int) -> Talk[set[Ref]]:
    groups = _together(ground, parts_of(refs, BATCH))
    calls = []
    for group in groups:
        args: list[bytes | str | int] = [channel, timeout]
        for _, part in group:
            args += (len(part), *id_list(refs, part))
        calls.append((group[0][0], ground.call("ended", [queue for queue, _ in group], args)))
    answers = yield from any_of(ground, calls)
    open: set[Ref] = set()
    for group, answer in zip(groups, answers, strict=True):
        if answer is AWAY:
            open |= {refs[place] for _, part in group for place in part}
            continue
        for (queue, _), ids in zip(group, answer, strict=True):
            open |= {Ref(queue, id_of(id)) for id in ids}
    return open


def _together(ground: Ground, parts: list[_Part]) -> list[list[_Part]]:
    """Which parts go in one script: those of a few queues, or on a Cluster each alone."""
    groups: list[list[_Part]] = []
    room = 0
    for part in parts:
        if ground.apart or len(part[1]) > room or len(groups[-1]) == _QUEUES:
            groups.append([])
            room = BATCH
        groups[-1].append(part)
        room -= len(part[1])
    return groups
