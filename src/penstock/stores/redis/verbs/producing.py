"""enqueue, get, cancel, and what a wait for results asks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from penstock.errors import EnqueueUnknown
from penstock.job import Job, NewJob, Ref, State
from penstock.store import Enqueued, Verdict
from penstock.stores.redis.calls import Acked, Call
from penstock.stores.redis.faults import ReplyLost
from penstock.stores.redis.ground import (
    BATCH,
    HEAVY,
    Ground,
    Talk,
    ask,
    chunks,
    id_list,
    parts_of,
    sure,
)
from penstock.stores.redis.keys import id_of, packed
from penstock.stores.redis.records import STATES, form_of, tail_of
from penstock.stores.wording import storable

__all__ = ["cancel", "ended_ones", "enqueue", "get", "highest", "known", "register", "states_of", "tell_news"]

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
#: How many queues one script may span: their numbers are bytes.
_QUEUES = 250


def enqueue(ground: Ground, jobs: Sequence[NewJob]) -> Talk[list[Enqueued]]:
    """A batch that was split says of each job what became of it; one that was not raises what went wrong."""
    if not jobs:
        return []
    unlisted = {job.queue for job in jobs} - ground.listed
    if unlisted:  # first: a queue that has jobs is on the list
        sure((yield [register(ground, unlisted)]))
        ground.listed |= unlisted
    if ground.clustered and ground.steered:
        yield from highest(ground)
    enqueued: list[Enqueued | None] = [None] * len(jobs)
    new: set[str] = set()
    parts = _parts(ground, jobs)
    batches = [[jobs[place] for place in part] for part in parts]
    spread = ground.clustered and len(parts) > 1 and len(jobs) <= BATCH
    room = _BATCHES if spread and any(job.group is not None for job in jobs) else 1
    answers = yield [
        _enqueue_call(ground, batch, [room * place for place in part] if spread else ())
        for part, batch in zip(parts, batches, strict=True)
    ]
    for part, batch, answer in zip(parts, batches, answers, strict=True):
        if len(batch) == len(jobs):
            _raise_whole(answer, jobs)
        for place, one in zip(part, _verdicts(ground, batch, answer, new), strict=True):
            enqueued[place] = one
    if new:  # somebody may have dropped the queue since it was put on the list
        sure((yield [register(ground, new)]))
    return [one for one in enqueued if one is not None]


def _parts(ground: Ground, jobs: Sequence[NewJob]) -> list[Sequence[int]]:
    """Which jobs go together in one script: their places."""
    first = jobs[0].queue
    places = range(len(jobs))
    if all(job.queue == first for job in jobs):
        return chunks(places, BATCH)
    if not ground.clustered:
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
    """All queues, by name."""
    key = ground.keys.queues
    (names,) = sure((yield [ask(key, "SMEMBERS", key)]))
    return sorted(name.decode() for name in names)


def highest(ground: Ground) -> Talk[None]:
    """Learn the highest generation of all queues. It is time that orders jobs over queues; where a test has
    stopped it, this does."""
    names = yield from known(ground)
    calls = [ask(key, "HGET", key + b":meta", "generation") for key in map(ground.keys.queue, names)]
    found = sure((yield calls)) if calls else []
    ground.floor = max([ground.floor, *(int(generation or 0) for generation in found)])


def register(ground: Ground, queues: set[str]) -> Call:
    """Put names on the list of all queues."""
    return ask(ground.keys.queues, "SADD", ground.keys.queues, *sorted(queues))


def _raise_whole(answer: Any, jobs: Sequence[NewJob]) -> None:
    if isinstance(answer, ReplyLost):
        raise EnqueueUnknown([job.id for job in jobs], str(answer)) from answer
    if isinstance(answer, Exception):
        raise answer


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
    answers = sure((yield [ground.call("get", [q], id_list(refs, part)) for q, part in parts]))
    found: list[Job | None] = [None] * len(refs)
    for (queue, part), answer in zip(parts, answers, strict=True):
        there = [n for n in range(len(part)) if answer[2 * n] is not None]
        rows = [(packed(refs[part[n]].id), answer[2 * n], answer[2 * n + 1]) for n in there]
        jobs = yield from ground.jobs(queue, rows)
        for n, job in zip(there, jobs, strict=True):
            found[part[n]] = job
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
        sure((yield tell_news(ground, "cancels")))
    return found


def tell_news(ground: Ground, what: str) -> list[Call]:
    """Count it, then tell all who wait. If we die before that, heartbeats and safety looks find it out."""
    keys = ground.keys
    return [
        ask(keys.news, "HINCRBY", keys.news, what, 1),
        ask(keys.news, "PUBLISH", keys.news_channel, what),
    ]


def ended_ones(
    ground: Ground, refs: Sequence[Ref], channel: str, seconds: float
) -> Talk[dict[Ref, Job | None]]:
    """Those (each once) that have ended or are gone; the channel hears of the others for so long."""
    open = yield from _open_ones(ground, refs, channel, max(0, int(seconds * 1000)))
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
        calls.append(ground.call("ended", [queue for queue, _ in group], args))
    answers = sure((yield calls))
    return {
        Ref(queue, id_of(id))
        for group, answer in zip(groups, answers, strict=True)
        for (queue, _), ids in zip(group, answer, strict=True)
        for id in ids
    }


def _together(ground: Ground, parts: list[_Part]) -> list[list[_Part]]:
    """Which parts go in one script: those of a few queues, or on a Cluster each alone."""
    groups: list[list[_Part]] = []
    room = 0
    for part in parts:
        if ground.clustered or len(part[1]) > room or len(groups[-1]) == _QUEUES:
            groups.append([])
            room = BATCH
        groups[-1].append(part)
        room -= len(part[1])
    return groups
