"""fetch, extend, settle, promote, reclaim, and what a wait for work asks."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from penstock.job import MAX_ERRORS, Job, Lease, NewJob, State
from penstock.lifecycle import Transition
from penstock.store import Beat, Due, Fetched, Grip, Offer, Settled, Settlement, Share, no_outcome
from penstock.stores.redis.calls import Call
from penstock.stores.redis.ground import BATCH, HEAVY, Ground, Talk, ask, chunks, sure
from penstock.stores.redis.handover import Handover
from penstock.stores.redis.keys import packed
from penstock.stores.redis.records import (
    form_of,
    grip,
    job_of,
    leased,
    progress_bytes,
    tail_of,
    transition_bytes,
)
from penstock.stores.redis.verbs.producing import known, register

__all__ = [
    "deliver",
    "extend",
    "fetch",
    "held_by",
    "look",
    "news_call",
    "pass_on",
    "promote",
    "read_handed_over",
    "reclaim",
    "settle",
]

_GRIPS = {"h": Grip.HELD, "l": Grip.LOST, "c": Grip.CANCEL_ASKED}
_GENERATIONS = 1 << 56
_TURN = struct.Struct("<d")
#: How many jobs one script promotes.
_PROMOTED = 1_000
#: The quota of a queue that is only asked what it has leased under the token.
_TOKEN_ONLY = -1
_LATER = ord("l")
_SETTLED = {ord("a"): Settled.APPLIED, ord("s"): Settled.STALE, ord("g"): Settled.GONE}


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────


def fetch(
    ground: Ground,
    queues: Sequence[Share],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    charge: bool,
) -> Talk[Fetched]:
    others = ground.used_before(token, [share.queue for share in queues])
    queues = [*queues, *(Share(queue, _TOKEN_ONLY, 0) for queue in others)] if others else queues
    ask_for = _Fetching(ground, lease, worker, token, charge)
    if ground.clustered and len(queues) > 1:
        return (yield from _fetch_over_slots(ground, ask_for, queues, limit))
    return (yield from ask_for.all(queues, limit))


class _Fetching:
    """One fetch, from queues that one script can span or in several steps."""

    def __init__(self, ground: Ground, lease: int, worker: str, token: str, charge: bool) -> None:
        self._ground = ground
        self._lease = lease
        self._worker = worker
        self.token = token
        self._charge = int(charge)
        self._again = False  # the last script has found that this fetch is a repeated one
        #: What the worker knows is asked for where jobs are parked; a script finds it itself
        #: where it may look outside of its slot.
        self._known: bytes | str = "?" if ground.clustered else "!"

    def all(self, shares: Sequence[Share], limit: int, *, anew: bool = True) -> Talk[Fetched]:
        """As many as there are, in as many scripts as that takes."""
        found = yield from self._some(shares, limit, anew=anew)
        while not self._again and 0 < len(found.jobs) < limit and len(found.jobs) % BATCH == 0:
            given = Counter(job.queue for job in found.jobs)
            rest = [_rest_of(share, given[share.queue]) for share in shares]
            more = yield from self._some(rest, limit - len(found.jobs), anew=False)
            if not more.jobs:
                break
            found = Fetched(found.jobs + more.jobs, found.now, more.due, more.opens)
        return found

    def _some(self, shares: Sequence[Share], limit: int, *, anew: bool) -> Talk[Fetched]:
        """`anew=False`: what is leased under the token is from this very fetch.

        Sent twice, such a script would lease twice: when its reply is lost, the whole fetch is repeated.
        """
        names = [share.queue for share in shares]
        while True:
            args: list[bytes | str | int] = [min(limit, BATCH), self._lease, self._worker, self.token]
            args += (self._charge, int(anew), self._known)
            for share in shares:
                args += (share.quota, share.cap, "" if share.free is None else share.free)
            call = self._ground.call("fetch", names, args)
            if self._known == "!":
                call = call._replace(keys=(*call.keys, self._ground.keys.workers))
            call = call._replace(repeatable=anew)
            (answer,) = sure((yield [call]))
            if answer[2] != b"tasks":
                break
            self._known = yield from self._announced()
        now, due = int(answer[0]), int(answer[1]) if answer[1] else None
        self._again = answer[2] == b"again"
        if self._again:
            jobs = yield from self._ground.learning(lambda: _read_rows(self._ground, names, answer[4:]))
        else:
            jobs = yield from self._ground.learning(lambda: self._read(names, answer, now))
        return Fetched(jobs, now, due, int(answer[3]) if answer[3] else None)

    def _announced(self) -> Talk[bytes]:
        key = self._ground.keys.workers
        (said,) = sure((yield [ask(key, "HGET", key, self._worker)]))
        info = {"tasks": []} if said is None else msgspec.msgpack.decode(said[8:])
        return msgspec.msgpack.encode({"tasks": info["tasks"], "handled": info.get("handled", [])})

    def _read(self, names: list[str], answer: list[Any], now: int) -> list[Job]:
        profiles, worker, token, charge = self._ground.profiles, self._worker, self.token, self._charge
        jobs: list[Job] = []
        at = 4
        while at < len(answer):
            queue, n = names[answer[at] - 1], answer[at + 1]
            if n < 0:  # of a limited queue: with their instants
                end = at + 2 - 3 * n
                jobs += [
                    leased(profiles, queue, id, record, int(start), worker, token, charge)
                    for id, record, start in zip(
                        *(answer[at + 2 + k : end : 3] for k in range(3)), strict=True
                    )
                ]
            else:
                end = at + 2 + 2 * n
                jobs += [
                    leased(profiles, queue, answer[i], answer[i + 1], now, worker, token, charge)
                    for i in range(at + 2, end, 2)
                ]
            at = end
        return jobs


def _rest_of(share: Share, given: int) -> Share:
    """What is still wanted of a queue that has given so many."""
    free = None if share.free is None else max(0, share.free - given)
    return Share(share.queue, max(0, share.quota - given), share.cap - given, free)


def _read_rows(ground: Ground, names: Sequence[str], rows: list[Any]) -> list[Job]:
    """Rows of four: number of the queue, id, record, lease."""
    jobs: list[Job] = []
    for i in range(0, len(rows), 4):
        number, id, record, held = rows[i : i + 4]
        jobs.append(job_of(ground.profiles, names[int(number) - 1], id, record, held))
    return jobs


def _fetch_over_slots(
    ground: Ground, ask_for: _Fetching, queues: Sequence[Share], limit: int
) -> Talk[Fetched]:
    repeated = yield from _under_token(ground, [share.queue for share in queues], ask_for.token)
    jobs: list[Job] = []
    given = dict.fromkeys((share.queue for share in queues), 0)
    now, dues = 0, []
    opens: dict[str, int | None] = {}
    for share in queues:
        room = 0 if repeated else max(0, min(share.quota, share.cap, limit - len(jobs)))
        part = share if share.quota == _TOKEN_ONLY else Share(share.queue, room, room, share.free)
        found = yield from ask_for.all([part], room)
        now = max(now, found.now)
        if found.due is not None:
            dues.append(found.due)
        given[share.queue] = len(found.jobs)
        opens[share.queue] = found.opens
        jobs += found.jobs
    for share in queues:
        room = 0 if repeated else min(share.cap - given[share.queue], limit - len(jobs))
        if room > 0 and given[share.queue] >= min(share.quota, share.cap):  # it may have more
            rest = Share(share.queue, room, room, _rest_of(share, given[share.queue]).free)
            found = yield from ask_for.all([rest], room, anew=False)
            opens[share.queue] = found.opens
            jobs += found.jobs
    instants = [instant for instant in opens.values() if instant is not None]
    return Fetched(jobs, now, min(dues, default=None), min(instants, default=None))


def _under_token(ground: Ground, queues: Sequence[str], token: str) -> Talk[bool]:
    calls = []
    for queue in queues:
        key = ground.keys.queue(queue) + b":tokens"
        calls.append(ask(key, "HEXISTS", key, token))
    return any(sure((yield calls)))


# ── extend, settle ───────────────────────────────────────────────────────────────────────────────


def _numbered(ground: Ground, queues: Sequence[str]) -> Iterator[tuple[dict[str, int], list[str]]]:
    """Groups of queues that one script can span, with their numbers in it."""
    names = list(dict.fromkeys(queues))
    most = 1 if ground.clustered else 250
    for some in chunks(names, most):
        yield {name: n for n, name in enumerate(some, 1)}, list(some)


def extend(ground: Ground, beats: Sequence[Beat]) -> Talk[list[Grip]]:
    calls: list[Call] = []
    places: list[list[int]] = []
    for numbers, names in _numbered(ground, [beat.lease.queue for beat in beats]):
        of_these = [place for place, beat in enumerate(beats) if beat.lease.queue in numbers]
        for part in chunks(of_these, BATCH):
            args: list[bytes | str | int] = []
            for place in part:
                beat = beats[place]
                args += (
                    numbers[beat.lease.queue],
                    packed(beat.lease.id),
                    grip(beat.lease),
                    beat.by,
                    int(beat.started),
                    b"" if beat.progress is None else b"=" + progress_bytes(beat.progress),
                    b"" if beat.checkpoint is None else b"=" + beat.checkpoint,
                )
            calls.append(ground.call("extend", names, args))
            places.append(list(part))
    grips: list[Grip] = [Grip.LOST] * len(beats)
    if calls:
        for part, answer in zip(places, sure((yield calls)), strict=True):
            for place, letter in zip(part, answer.decode(), strict=True):
                grips[place] = _GRIPS[letter]
    return grips


def settle(ground: Ground, settlements: Sequence[Settlement]) -> Talk[list[Settled]]:
    for one in settlements:
        no_outcome(one.transition)
    calls: list[Call] = []
    places: list[Sequence[int]] = []
    queues = [one.lease.queue for one in settlements] + [
        new.queue for one in settlements if one.then for new in one.then
    ]
    for numbers, names in _numbered(ground, queues):
        of_these = [place for place, one in enumerate(settlements) if one.lease.queue in numbers]
        for part in _by_weight(settlements, of_these):
            calls.append(_settle_call(ground, [settlements[place] for place in part], numbers, names))
            places.append(part)
    settled: list[Settled] = [Settled.GONE] * len(settlements)
    following = {new.queue for one in settlements for new in one.then}
    if following - ground.listed:
        sure((yield [register(ground, following)]))
        ground.listed |= following
    if following:  # again, behind the jobs: somebody may have dropped a queue since it was put on the list
        calls.append(register(ground, following))
    if calls:
        lying: list[tuple[str, bytes]] = []
        later: list[int] = []  # they would have made the script too long
        answers = sure((yield calls))
        for part, (letters, highest, out) in zip(places, answers, strict=not following):
            ground.floor = max(ground.floor, int(highest))
            for place, letter in zip(part, letters, strict=True):
                if letter == _LATER:
                    later.append(place)
                else:
                    settled[place] = _SETTLED[letter]
            lying += [(settlements[part[0]].lease.queue, name) for name in out]
        if lying:
            yield from deliver(ground, lying)
        if later:
            rest = yield from settle(ground, [settlements[place] for place in later])
            for place, answer in zip(later, rest, strict=True):
                settled[place] = answer
    return settled


def _by_weight(settlements: Sequence[Settlement], places: Sequence[int]) -> list[Sequence[int]]:
    """Parts that hold the server for 5 ms at most. A later part's jobs go to the head before an earlier's."""
    heavy = not all(_light(settlements[place]) for place in places)
    parts = chunks(places, HEAVY if heavy else BATCH)
    return parts[::-1] if heavy else parts


def _light(one: Settlement) -> bool:
    return one.transition.state is State.COMPLETED and one.transition.keep <= 0 and not one.then


def _settle_call(
    ground: Ground, settlements: Sequence[Settlement], numbers: dict[str, int], names: list[str]
) -> Call:
    profiles: dict[bytes, bytes] = {}
    transitions: dict[Transition, int] = {}
    runs: list[bytes | str | int] = []
    for (queue, plain, number), some in groupby(settlements, _run_of(transitions)):
        batch = list(some)
        head = bytes((numbers[queue],)) + number.to_bytes(2, "little") + len(batch).to_bytes(2, "little")
        runs.append(head + bytes((plain,)))
        if plain:
            runs += _plain(batch)
            continue
        for one in batch:
            result = b"" if one.result is None else b"r" + one.result
            following = _following(ground, one.then, numbers, profiles)
            runs += (packed(one.lease.id), grip(one.lease), result, following)
    args: list[bytes | str | int] = [ground.floor, MAX_ERRORS, len(profiles)]
    for pair in profiles.items():
        args += pair
    args += [len(transitions), *map(transition_bytes, transitions), *runs]
    # sent twice, it would be told that the lease is gone: whoever settles asks what has become of the job
    return ground.call("settle", names, args, repeatable=False)


def _plain(batch: Sequence[Settlement]) -> list[bytes]:
    """Id and grip of each. As `grip`, but what a batch has in common is made once: 0.5 of 3 us per job."""
    args: list[bytes] = []
    last, token = None, b""
    for one in batch:
        lease = one.lease
        if isinstance(lease, Lease) and lease.token is last and 0 <= lease.generation < _GENERATIONS:
            args += (packed(lease.id), lease.generation.to_bytes(7, "big") + token)
            continue
        whole = grip(lease)
        args += (packed(lease.id), whole)
        if isinstance(lease, Lease) and len(whole) > 8:
            last, token = lease.token, whole[7:]
    return args


def _run_of(transitions: dict[Transition, int]) -> Callable[[Settlement], tuple[str, bool, int]]:
    """What settlements have in common that go together: queue, whether plain, number of the transition."""
    last: list[Any] = [None, 0]

    def run_of(one: Settlement) -> tuple[str, bool, int]:
        to = one.transition
        if to is not last[0]:  # most are, and hashing one costs more than all the rest here
            last[:] = to, transitions.setdefault(to, len(transitions) + 1)
        return one.lease.queue, one.result is None and not one.then, last[1]

    return run_of


def _following(
    ground: Ground, then: Sequence[NewJob], numbers: dict[str, int], profiles: dict[bytes, bytes]
) -> bytes:
    parts: list[bytes] = []
    for new in then:
        number = numbers.get(new.queue, 0)
        if number:
            digest, text = ground.profiles.write(new)
            profiles[digest] = text
            facts = (packed(new.id), form_of(new, number), tail_of(new, digest))
        else:
            facts = (b"", b"", msgspec.msgpack.encode(new))
        parts.append(bytes((number,)))
        parts += [part for fact in facts for part in (len(fact).to_bytes(4, "little"), fact)]
    return b"".join(parts)


def deliver(ground: Ground, lying: Sequence[tuple[str, bytes]]) -> Talk[None]:
    """Jobs that follow one of another slot lie in its queue's `out` until they are enqueued in their own.

    If we die in between, whoever prunes that queue delivers them: at least once, as everything.
    """
    keys = [(queue, ground.keys.queue(queue) + b":out", name) for queue, name in lying]
    texts = sure((yield [ask(key, "HGET", key, name) for _, key, name in keys]))
    found = [(key, name, text) for (_, key, name), text in zip(keys, texts, strict=True) if text is not None]
    news = [msgspec.msgpack.decode(text[8:], type=NewJob) for _, _, text in found]
    turns = [int(_TURN.unpack_from(text)[0]) for _, _, text in found]
    if news:
        ground.listed |= {new.queue for new in news}
        sure((yield [register(ground, {new.queue for new in news})]))
        calls = [_follower_call(ground, new, turn) for new, turn in zip(news, turns, strict=True)]
        for highest in sure((yield calls)):
            ground.floor = max(ground.floor, int(highest))
        sure((yield [ask(key, "HDEL", key, name) for key, name, _ in found]))


def _follower_call(ground: Ground, new: NewJob, turn: int) -> Call:
    """`turn`: the generation that was kept free for it when its job was settled."""
    digest, text = ground.profiles.write(new)
    facts = (packed(new.id), form_of(new, 1), tail_of(new, digest))
    return ground.call("follow", [new.queue], [turn - 1, 1, digest, text, *facts])


# ── promote, reclaim ─────────────────────────────────────────────────────────────────────────────


def promote(ground: Ground, queues: Sequence[str], limit: int) -> Talk[Due]:
    if not ground.clustered or len(queues) < 2:
        return (yield from _promote(ground, queues, limit))[0]
    moved, now, again = 0, 0, True
    dues: list[int] = []
    while again:  # what one queue has left of its share of the limit goes to all of them once more
        firsts = yield from _firsts(ground, queues, ":due", limit)
        dues, again, left = [], False, limit
        for queue in queues:
            part, used, skipped = yield from _promote(ground, [queue], firsts.count(queue))
            moved, now, left = moved + part.moved, max(now, part.now), left - used
            again = again or skipped
            if part.next is not None:
                dues.append(part.next)
        limit, again = left, again and left > 0
    return Due(moved, min(dues, default=None), now)


def _promote(ground: Ground, queues: Sequence[str], limit: int) -> Talk[tuple[Due, int, bool]]:
    """In steps that hold the server for 5 ms at most; each says whether there is more. Besides, how much of
    the limit was used, and whether something was not due any more when it was its turn."""
    moved, used = 0, 0
    while True:
        step = min(_PROMOTED, limit - used)
        (answer,) = sure((yield [ground.call("promote", queues, [step, ground.floor])]))
        moved, used = moved + answer[0], used + answer[3]
        ground.floor = max(ground.floor, int(answer[5]))
        if answer[3] < step or used >= limit:
            due = Due(moved, int(answer[1]) if answer[1] else None, int(answer[2]))
            return due, used, answer[4] == 1


def _firsts(ground: Ground, queues: Sequence[str], order: str, limit: int) -> Talk[list[str]]:
    """Whose turn it is, over several slots: the queues of the first `limit` entries of an order."""
    calls = []
    for queue in queues:
        key = ground.keys.queue(queue) + order.encode()
        calls.append(ask(key, "ZRANGE", key, 0, max(0, limit - 1), "WITHSCORES"))
    entries = [
        (float(answer[i + 1]), answer[i], queue)
        for queue, answer in zip(queues, sure((yield calls)), strict=True)
        for i in range(0, len(answer), 2)
    ]
    return [queue for _, _, queue in sorted(entries)[: max(0, limit)]]


def reclaim(
    ground: Ground,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> Talk[Fetched]:
    limit = max(0, min(limit, BATCH))
    if of is not None:
        return (yield from _reclaim_of(ground, limit, lease, worker, token, of))
    facts: list[bytes | str | int] = [lease, worker, token]
    if others := ground.used_before(token, queues):
        found = yield from _again_anywhere(ground, [*queues, *others], limit, facts)
        if found.jobs:
            return found
    if not ground.clustered or len(queues) < 2:
        shares = [(list(queues), limit)] if queues else []
    else:
        repeated = yield from _under_token(ground, queues, token)
        firsts = [] if repeated else (yield from _firsts(ground, queues, ":leases", limit))
        shares = [([queue], firsts.count(queue)) for queue in queues]
    calls = [ground.call("reclaim", names, [most, *facts]) for names, most in shares]
    answers = sure((yield calls)) if calls else []
    now = max([int(answer[0]) for answer in answers]) if answers else (yield from _now(ground))
    jobs: list[Job] = []
    for (names, _), answer in zip(shares, answers, strict=True):
        jobs += yield from _reclaimed(ground, names, answer)
    return Fetched(jobs, now)


def _again_anywhere(
    ground: Ground, queues: Sequence[str], limit: int, facts: list[bytes | str | int]
) -> Talk[Fetched]:
    """What is leased under a token that comes again, also in queues that this call does not name."""
    jobs: list[Job] = []
    now = 0
    for names in ground.servers(queues):
        (answer,) = sure((yield [ground.call("reclaim", names, [limit, *facts, "|"])]))
        now = int(answer[0])
        jobs += yield from _reclaimed(ground, names, answer)
    return Fetched(jobs, now)


def _reclaimed(ground: Ground, names: Sequence[str], answer: list[Any]) -> Talk[list[Job]]:
    return (yield from ground.learning(lambda: _read_rows(ground, names, answer[1:])))


def _reclaim_of(
    ground: Ground, limit: int, lease: int, worker: str, token: str, of: Sequence[str]
) -> Talk[Fetched]:
    """Whatever these workers hold, in any queue: it is looked for first, then taken if they hold it still."""
    queues = yield from known(ground)
    now = 0
    repeated = bool(queues) and (yield from _under_token(ground, queues, token))
    wanted: dict[str, list[bytes]] = {}
    if not repeated:
        held = yield from held_by(ground, queues, set(of))
        for _, queue, id in sorted(held)[:limit]:
            wanted.setdefault(queue, []).append(id)
    names_now = queues if repeated else sorted(wanted)
    calls = []
    for queue in names_now:
        pairs: list[bytes | str | int] = []
        for id in wanted.get(queue, ()):
            pairs += (1, id)
        calls.append(ground.call("reclaim", [queue], [limit, lease, worker, token, *of, "|", *pairs]))
    answers = sure((yield calls)) if calls else []
    jobs: list[Job] = []
    for queue, answer in zip(names_now, answers, strict=True):
        now = max(now, int(answer[0]))
        jobs += yield from _reclaimed(ground, [queue], answer)
    if not calls:
        now = yield from _now(ground)
    jobs.sort(key=lambda job: job.generation)
    return Fetched(jobs, now)


def _now(ground: Ground) -> Talk[int]:
    (answer,) = sure((yield [ground.shared_call("now", ground.keys.news, ())]))
    return int(answer)


def held_by(ground: Ground, queues: Sequence[str], workers: set[str]) -> Talk[list[tuple[int, str, bytes]]]:
    """What these workers hold: (generation, queue, stored id). In steps, whatever the number of leases."""
    found: set[tuple[int, str, bytes]] = set()
    cursors: dict[str, bytes] = dict.fromkeys(queues, b"0")
    while cursors:
        asked = list(cursors.items())
        calls = []
        for queue, cursor in asked:
            key = ground.keys.queue(queue) + b":held"
            calls.append(ask(key, "HSCAN", key, cursor, "COUNT", 1_000))
        for (queue, _), (cursor, fields) in zip(asked, sure((yield calls)), strict=True):
            for i in range(0, len(fields), 2):
                held = fields[i + 1]
                at = 8 + held[7] + 9
                size = int.from_bytes(held[at : at + 2], "little")
                if held[at + 2 : at + 2 + size].decode() in workers:
                    found.add((int.from_bytes(held[:7], "big"), queue, fields[i]))
            if cursor == b"0":
                del cursors[queue]
            else:
                cursors[queue] = cursor
    return list(found)


# ── wait ─────────────────────────────────────────────────────────────────────────────────────────


def news_call(ground: Ground) -> Call:
    """How many requests to stop, and changes of settings, there have been."""
    key = ground.keys.news
    return ask(key, "HMGET", key, "cancels", "changes")


def offer_of(ground: Ground, queues: Sequence[str], offer: Offer) -> str:
    """An offer as producers read it, or nothing if it cannot be written so. On a Cluster no script could
    take it back from the other queues, so that nobody offers there."""
    if ground.clustered:
        return ""
    parts = [str(offer.lease), offer.token, offer.worker, *(ground.keys.queue(q).decode() for q in queues)]
    fits = len(offer.token.encode()) < 256 and not any("\n" in part for part in parts)
    return "\n".join(parts) if fits else ""


def withdraw(ground: Ground, queues: Sequence[str], channel: str) -> Talk[None]:
    """Nobody waits on this channel any more."""
    calls = []
    for key in map(ground.keys.queue, queues):
        calls.append(ask(key, "ZREM", key + b":waiters", channel))
        calls.append(ask(key, "HDEL", key + b":offers", channel))
    yield calls


def handed_over(ground: Ground, came: Sequence[Handover], worker: str) -> Talk[Fetched]:
    """What was leased to a waiter by those who enqueued it."""
    jobs = yield from ground.learning(lambda: read_handed_over(ground, came, worker))
    return Fetched(jobs, max(one.now for one in came))


def read_handed_over(ground: Ground, came: Sequence[Handover], worker: str) -> list[Job]:
    """Raises UnknownProfile where the server has to be asked for one."""
    return [
        leased(ground.profiles, one.queue, one.stored, one.record, one.now, worker, one.token, 1)
        for one in came
    ]


def look(
    ground: Ground, queues: Sequence[str], timeout: int, till: str, channel: str, offer: str
) -> Talk[tuple[bool, str, tuple[int, int]]]:
    """Whether there is work (if not, the channel will hear of it), till when the wait is, the news so far."""
    args: list[bytes | str | int] = [timeout, till, channel, offer]
    if ground.clustered:
        calls = [news_call(ground), *(ground.call("look", [queue], args) for queue in queues)]
        news, *answers = sure((yield calls))
    else:
        call = ground.call("look", queues, args)
        answers = sure((yield [call._replace(keys=(*call.keys, ground.keys.news))]))
        news = answers[0][2]
    said = till or (answers[0][1].decode() if answers else "")
    return any(answer[0] for answer in answers), said, (int(news[0] or 0), int(news[1] or 0))


def pass_on(ground: Ground, queue: str, kind: bytes) -> Talk[None]:
    sure((yield [ground.call("pass", [queue], [kind])]))
