"""fetch, extend, settle, promote, reclaim, and what a wait for work asks."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

import msgspec

from penstock.core.errors import StoreCorrupt
from penstock.core.job import MAX_ERRORS, Job, Lease, NewJob, State
from penstock.core.lifecycle import Transition, set_aside
from penstock.stores.contract import (
    Beat,
    Due,
    Fetched,
    Grip,
    Offer,
    SetAside,
    Settled,
    Settlement,
    Share,
    no_outcome,
)
from penstock.stores.redis.context import (
    AWAY,
    BATCH,
    HEAVY,
    SHARED,
    Ground,
    Talk,
    alone,
    any_of,
    ask,
    chunks,
    each,
    in_bytes,
    isolated,
    sure,
    whole,
)
from penstock.stores.redis.direct_dispatch import Handover
from penstock.stores.redis.keys import packed
from penstock.stores.redis.reading import Row, leased_jobs, read_quickly
from penstock.stores.redis.records import (
    UNDECODABLE,
    UNWRITABLE,
    CannotWrite,
    form_of,
    grip,
    job_of,
    leased,
    progress_bytes,
    tail_of,
    transition_bytes,
)
from penstock.stores.redis.verbs.producing import known, listing, register
from penstock.stores.redis.wire.calls import Call

__all__ = [
    "deliver",
    "extend",
    "fetch",
    "held_by",
    "look",
    "news_call",
    "now_of",
    "pass_on",
    "promote",
    "read_handed_over",
    "reclaim",
    "settle",
]

_GRIPS = {"h": Grip.HELD, "l": Grip.LOST, "c": Grip.CANCEL_ASKED}
_GENERATIONS = 1 << 56
_TURN = struct.Struct("<d")
_read_new = msgspec.msgpack.Decoder(NewJob).decode
#: How many jobs one script promotes.
_PROMOTED = 1_000
#: The quota of a queue that is only asked what it has leased under the token.
_TOKEN_ONLY = -1
#: So many queues are asked what time it is, if the namespace's own server does not say.
_CLOCKS = 5
_LATER = ord("l")
_SETTLED = {ord("a"): Settled.APPLIED, ord("s"): Settled.STALE, ord("g"): Settled.GONE}


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────


@isolated
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
    if ground.apart and len(queues) > 1:
        found = yield from _fetch_over_slots(ground, ask_for, queues, limit)
    else:
        found = yield from ask_for.all(queues, limit)
    aside = ground.asides.take()
    return msgspec.structs.replace(found, set_aside=aside) if aside else found


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
            found = Fetched(found.jobs + more.jobs, found.now, more.due, more.opens, kept=more.kept)
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
            jobs = yield from _rows_of_four(self._ground, names, answer[4:])
        else:
            quickly = yield from read_quickly(self._ground, lambda: self._read(names, answer, now))
            jobs = (yield from self._one_by_one(names, answer, now)) if quickly is None else quickly
        kept = tuple(names[int(number) - 1] for number in answer[2].split()[1:])
        return Fetched(jobs, now, due, int(answer[3]) if answer[3] else None, kept=kept)

    def _announced(self) -> Talk[bytes]:
        key = self._ground.keys.workers
        (said,) = yield from each(self._ground, [(SHARED, ask(key, "HGET", key, self._worker))])
        try:
            info = _read_announced((b"" if said in (None, AWAY) else said)[8:])
        except UNDECODABLE:  # the next time that it announces itself it is well again
            info = _Announced()
        return msgspec.msgpack.encode(info)

    def _read(self, names: list[str], answer: list[Any], now: int) -> list[Job]:
        profiles, worker, token, charge = self._ground.profiles, self._worker, self.token, self._charge
        jobs: list[Job] = []
        at = 4
        while at < len(answer) and answer[at]:
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
        if at < len(answer):  # and this was set aside
            self._ground.told(answer[at + 2 :])
        return jobs

    def _one_by_one(self, names: list[str], answer: list[Any], now: int) -> Talk[list[Job]]:
        """The same where something cannot be read."""
        rows: list[Row] = []
        at = 4
        while at < len(answer) and answer[at]:
            queue, n = names[answer[at] - 1], answer[at + 1]
            width = 3 if n < 0 else 2
            end = at + 2 + abs(n) * width
            rows += [
                (queue, *answer[i : i + 2], int(answer[i + 2]) if n < 0 else now)
                for i in range(at + 2, end, width)
            ]
            at = end
        if at < len(answer):
            self._ground.told(answer[at + 2 :])
        profiles, worker, token, charge = self._ground.profiles, self._worker, self.token, self._charge

        def read(row: Row) -> Job:
            queue, id, record, start = row
            return leased(profiles, queue, id, record, start, worker, token, charge)

        return (yield from leased_jobs(self._ground, rows, read))


class _Announced(msgspec.Struct):
    """What a worker says that it can run."""

    tasks: list[str] = []
    handled: list[str] = []


_read_announced = msgspec.msgpack.Decoder(_Announced).decode


def _rest_of(share: Share, given: int) -> Share:
    """What is still wanted of a queue that has given so many."""
    free = None if share.free is None else max(0, share.free - given)
    return Share(share.queue, max(0, share.quota - given), share.cap - given, free)


def _rows_of_four(ground: Ground, names: Sequence[str], answer: list[Any]) -> Talk[list[Job]]:
    """Rows of four: number of the queue, id, record, lease; or 0, id, a queue's key, why it was set aside."""
    rows: list[Row] = []
    for i in range(0, len(answer), 4):
        number, id, record, held = answer[i : i + 4]
        if number:
            rows.append((names[int(number) - 1], id, record, held))
        else:
            ground.told([record, id, held])
    return (yield from leased_jobs(ground, rows, lambda row: job_of(ground.profiles, *row)))


def _fetch_over_slots(
    ground: Ground, ask_for: _Fetching, queues: Sequence[Share], limit: int
) -> Talk[Fetched]:
    repeated = yield from _under_token(ground, [share.queue for share in queues], ask_for.token)
    queues = [share for share in queues if ground.why(share.queue) is None]
    jobs: list[Job] = []
    given = dict.fromkeys((share.queue for share in queues), 0)
    now, dues = 0, []
    opens: dict[str, int | None] = {}
    kept: dict[str, tuple[str, ...]] = {}
    for share in queues:
        room = 0 if repeated else max(0, min(share.quota, share.cap, limit - len(jobs)))
        part = share if share.quota == _TOKEN_ONLY else Share(share.queue, room, room, share.free)
        found = yield from alone(ground, share.queue, ask_for.all([part], room))
        if found is AWAY:
            continue
        now = max(now, found.now)
        if found.due is not None:
            dues.append(found.due)
        given[share.queue] = len(found.jobs)
        opens[share.queue], kept[share.queue] = found.opens, found.kept
        jobs += found.jobs
    for share in queues:
        room = 0 if repeated else min(share.cap - given[share.queue], limit - len(jobs))
        if room > 0 and given[share.queue] >= min(share.quota, share.cap):  # it may have more
            rest = Share(share.queue, room, room, _rest_of(share, given[share.queue]).free)
            found = yield from alone(ground, share.queue, ask_for.all([rest], room, anew=False))
            if found is AWAY:
                continue
            opens[share.queue], kept[share.queue] = found.opens, found.kept
            jobs += found.jobs
    if not now:
        raise ground.unavailable(given)
    instants = [instant for instant in opens.values() if instant is not None]
    names = tuple(chain.from_iterable(kept.values()))
    return Fetched(jobs, now, min(dues, default=None), min(instants, default=None), kept=names)


def _under_token(ground: Ground, queues: Sequence[str], token: str) -> Talk[bool]:
    calls = []
    for queue in queues:
        key = ground.keys.queue(queue) + b":tokens"
        calls.append((queue, ask(key, "HEXISTS", key, token)))
    return any(answer is not AWAY and answer for answer in (yield from any_of(ground, calls)))


# ── extend, settle ───────────────────────────────────────────────────────────────────────────────


def _numbered(ground: Ground, queues: Sequence[str]) -> Iterator[tuple[dict[str, int], list[str]]]:
    """Groups of queues that one script can span, with their numbers in it."""
    names = list(dict.fromkeys(queues))
    most = 1 if ground.apart else 250
    for some in chunks(names, most):
        yield {name: n for n, name in enumerate(some, 1)}, list(some)


@isolated
def extend(ground: Ground, beats: Sequence[Beat]) -> Talk[list[Grip]]:
    calls: list[tuple[str, Call]] = []
    places: list[list[int]] = []
    for numbers, names in _numbered(ground, [beat.lease.queue for beat in beats]):
        of_these = [place for place, beat in enumerate(beats) if beat.lease.queue in numbers]
        for part in _by_checkpoints(beats, of_these):
            args: list[bytes | str | int] = []
            for place in part:
                beat = beats[place]
                args += (
                    numbers[beat.lease.queue],
                    packed(beat.lease.id),
                    grip(beat.lease),
                    beat.by,
                    int(beat.started),
                    progress_bytes(beat.progress),
                    b"" if beat.checkpoint is None else b"=" + beat.checkpoint,
                )
            calls.append((names[0], ground.call("extend", names, args)))
            places.append(list(part))
    grips: list[Grip] = [Grip.LOST] * len(beats)
    if calls:
        for part, answer in zip(places, (yield from each(ground, calls)), strict=True):
            if answer is AWAY:
                for place in part:
                    grips[place] = Grip.UNKNOWN
                continue
            for place, letter in zip(part, answer.decode(), strict=True):
                grips[place] = _GRIPS[letter]
    return grips


def _by_checkpoints(beats: Sequence[Beat], places: Sequence[int]) -> list[Sequence[int]]:
    parts = chunks(places, BATCH)
    if all(beat.checkpoint is None for beat in beats):
        return parts
    sizes = [len(beat.checkpoint or b"") for beat in beats]
    return [lighter for part in parts for lighter in in_bytes(part, sizes)]


def settle(ground: Ground, settlements: Sequence[Settlement]) -> Talk[list[Settled]]:
    for one in settlements:
        no_outcome(one.transition)
    try:
        return (yield from _settle(ground, settlements))
    except StoreCorrupt:  # who repeats it goes queue by queue; at once it would meet what was settled here
        ground.spoiled.met()
        raise
    except CannotWrite:  # found before anything was sent
        return (yield from _settle(ground, [_writable(ground, one) for one in settlements]))


def _writable(ground: Ground, one: Settlement) -> Settlement:
    """The same, or where it cannot be written an end that says so."""
    try:
        _settle_call(ground, [one], {one.lease.queue: 1}, [one.lease.queue])
    except CannotWrite as error:
        return Settlement(one.lease, set_aside(f"what became of it cannot be written: {error}"))
    return one


def _settle(ground: Ground, settlements: Sequence[Settlement]) -> Talk[list[Settled]]:
    calls: list[tuple[str, Call]] = []
    places: list[Sequence[int]] = []
    queues = [one.lease.queue for one in settlements] + [
        new.queue for one in settlements if one.then for new in one.then
    ]
    for numbers, names in _numbered(ground, queues):
        of_these = [place for place, one in enumerate(settlements) if one.lease.queue in numbers]
        for part in _by_weight(settlements, of_these):
            call = _settle_call(ground, [settlements[place] for place in part], numbers, names)
            calls.append((names[0], call))
            places.append(part)
    settled: list[Settled] = [Settled.GONE] * len(settlements)
    following = {new.queue for one in settlements for new in one.then}
    if following - ground.listed:
        yield from register(ground, following)
    if following:  # again, behind the jobs: somebody may have dropped a queue since it was put on the list
        calls.append((SHARED, listing(ground, following)))
    if calls:
        lying: list[tuple[str, bytes]] = []
        later: list[int] = []  # they would have made the script too long
        answers = yield from each(ground, calls)
        for part, answer in zip(places, answers, strict=not following):
            if answer is AWAY:
                for place in part:
                    settled[place] = Settled.UNKNOWN
                continue
            letters, highest, out = answer
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
            rest = yield from _settle(ground, [settlements[place] for place in later])
            for place, answer in zip(later, rest, strict=True):
                settled[place] = answer
    return settled


def _by_weight(settlements: Sequence[Settlement], places: Sequence[int]) -> list[Sequence[int]]:
    """Parts that hold the server for 5 ms at most. A later part's jobs go to the head before an earlier's."""
    if all(_light(settlements[place]) for place in places):
        return chunks(places, BATCH)
    sizes = [len(one.result or b"") + sum([len(new.payload) for new in one.then]) for one in settlements]
    parts = [lighter for part in chunks(places, HEAVY) for lighter in in_bytes(part, sizes)]
    return parts[::-1]


def _light(one: Settlement) -> bool:
    return one.transition.state is State.COMPLETED and one.transition.keep <= 0 and not one.then


def _settle_call(
    ground: Ground, settlements: Sequence[Settlement], numbers: dict[str, int], names: list[str]
) -> Call:
    try:
        args = _settle_args(ground, settlements, numbers)
    except UNWRITABLE as error:
        raise CannotWrite(str(error)) from error
    # sent twice, it would be told that the lease is gone: whoever settles asks what has become of the job
    return ground.call("settle", names, args, repeatable=False)


def _settle_args(
    ground: Ground, settlements: Sequence[Settlement], numbers: dict[str, int]
) -> list[bytes | str | int]:
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
    return args


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
    texts = yield from each(ground, [(queue, ask(key, "HGET", key, name)) for queue, key, name in keys])
    found: list[tuple[str, bytes, bytes]] = []
    calls: list[tuple[str, Call]] = []
    for (queue, key, name), text in zip(keys, texts, strict=True):
        if text is None or text is AWAY:
            continue
        try:
            new, turn = _read_new(text[8:]), int(_TURN.unpack_from(text)[0])
            calls.append((new.queue, _follower_call(ground, new, turn)))
        except UNDECODABLE as error:
            yield from _keep_unread(ground, queue, name, text, f"what follows a job cannot be read ({error})")
            continue
        found.append((queue, key, name))
    if found:
        yield from register(ground, {queue for queue, _ in calls})
        gone: list[tuple[str, Call]] = []
        answers = yield from each(ground, calls)
        for (queue, key, name), highest in zip(found, answers, strict=True):
            if highest is not AWAY:  # else it lies there until its queue is back
                ground.floor = max(ground.floor, int(highest))
                gone.append((queue, ask(key, "HDEL", key, name)))
        yield from each(ground, gone)


def _keep_unread(ground: Ground, queue: str, name: bytes, text: bytes, cause: str) -> Talk[None]:
    """Nobody can say where it should go: it is a dead job of the queue that it lies in."""
    id = f"outbox-{name.hex()}"[:128]
    call = ground.call("keep_unread", [queue], [name, text, packed(id), cause])
    (kept,) = yield from each(ground, [(queue, call)])
    if kept is not AWAY:
        ground.asides.add(SetAside("outbox entry", queue, id, cause))


def _follower_call(ground: Ground, new: NewJob, turn: int) -> Call:
    """`turn`: the generation that was kept free for it when its job was settled."""
    digest, text = ground.profiles.write(new)
    facts = (packed(new.id), form_of(new, 1), tail_of(new, digest))
    return ground.call("follow", [new.queue], [turn - 1, 1, digest, text, *facts])


# ── promote, reclaim ─────────────────────────────────────────────────────────────────────────────


@isolated
def promote(ground: Ground, queues: Sequence[str], limit: int) -> Talk[Due]:
    if not ground.apart or len(queues) < 2:
        due = (yield from _promote(ground, queues, limit))[0]
        return msgspec.structs.replace(due, set_aside=ground.asides.take())
    moved, now, again = 0, 0, True
    dues: list[int] = []
    while again:  # what one queue has left of its share of the limit goes to all of them once more
        firsts = yield from _firsts(ground, queues, ":due", limit)
        dues, again, left = [], False, limit
        for queue in queues:
            promoted = yield from alone(ground, queue, _promote(ground, [queue], firsts.count(queue)))
            if promoted is AWAY:
                continue
            part, used, skipped = promoted
            moved, now, left = moved + part.moved, max(now, part.now), left - used
            again = again or skipped
            if part.next is not None:
                dues.append(part.next)
        limit, again = left, again and left > 0
    return Due(moved, min(dues, default=None), now, ground.asides.take())


def _promote(ground: Ground, queues: Sequence[str], limit: int) -> Talk[tuple[Due, int, bool]]:
    """In steps that hold the server for 5 ms at most; each says whether there is more. Besides, how much of
    the limit was used, and whether something was not due any more when it was its turn."""
    moved, used = 0, 0
    while True:
        step = min(_PROMOTED, limit - used)
        (answer,) = sure((yield [ground.call("promote", queues, [step, ground.floor])]))
        moved, used = moved + answer[0], used + answer[3]
        ground.floor = max(ground.floor, int(answer[5]))
        ground.told(answer[6:])
        if answer[3] < step or used >= limit:
            due = Due(moved, int(answer[1]) if answer[1] else None, int(answer[2]))
            return due, used, answer[4] == 1


def _firsts(ground: Ground, queues: Sequence[str], order: str, limit: int) -> Talk[list[str]]:
    """Whose turn it is, over several slots: the queues of the first `limit` entries of an order."""
    calls = []
    for queue in queues:
        key = ground.keys.queue(queue) + order.encode()
        calls.append((queue, ask(key, "ZRANGE", key, 0, max(0, limit - 1), "WITHSCORES")))
    entries = [
        (float(answer[i + 1]), answer[i], queue)
        for queue, answer in zip(queues, (yield from any_of(ground, calls)), strict=True)
        if answer is not AWAY
        for i in range(0, len(answer), 2)
    ]
    return [queue for _, _, queue in sorted(entries)[: max(0, limit)]]


@isolated
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
    if not ground.apart or len(queues) < 2:
        shares = [(list(queues), limit)] if queues else []
    else:
        repeated = yield from _under_token(ground, queues, token)
        firsts = [] if repeated else (yield from _firsts(ground, queues, ":leases", limit))
        shares = [([queue], firsts.count(queue)) for queue in queues]
    calls = [(names[0], ground.call("reclaim", names, [most, *facts])) for names, most in shares]
    answers = (yield from any_of(ground, calls)) if calls else []
    now, jobs = 0, []
    for (names, _), answer in zip(shares, answers, strict=True):
        if answer is not AWAY:
            now = max(now, int(answer[0]))
            jobs += yield from _reclaimed(ground, names, answer)
    return Fetched(jobs, now or (yield from now_of(ground)), set_aside=ground.asides.take())


def _again_anywhere(
    ground: Ground, queues: Sequence[str], limit: int, facts: list[bytes | str | int]
) -> Talk[Fetched]:
    """What is leased under a token that comes again, also in queues that this call does not name."""
    jobs: list[Job] = []
    now = 0
    for names in ground.servers(queues):
        (answer,) = yield from each(ground, [(names[0], ground.call("reclaim", names, [limit, *facts, "|"]))])
        if answer is not AWAY:
            now = int(answer[0])
            jobs += yield from _reclaimed(ground, names, answer)
    return Fetched(jobs, now)


def _reclaimed(ground: Ground, names: Sequence[str], answer: list[Any]) -> Talk[list[Job]]:
    return (yield from _rows_of_four(ground, names, answer[1:]))


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
        call = ground.call("reclaim", [queue], [limit, lease, worker, token, *of, "|", *pairs])
        calls.append((queue, call))
    answers = (yield from each(ground, calls)) if calls else []
    jobs: list[Job] = []
    for queue, answer in zip(names_now, answers, strict=True):
        if answer is not AWAY:
            now = max(now, int(answer[0]))
            jobs += yield from _reclaimed(ground, [queue], answer)
    now = now or (yield from now_of(ground))
    jobs.sort(key=lambda job: job.generation)
    return Fetched(jobs, now, set_aside=ground.asides.take())


def now_of(ground: Ground) -> Talk[int]:
    """By the server of the namespace; where that is away, by any other."""
    keys = [(SHARED, ground.keys.news)]
    keys += [
        (queue, ground.keys.queue(queue) + b":meta") for queue in sorted(ground.met - {SHARED})[:_CLOCKS]
    ]
    for name, key in keys if ground.apart else keys[:1]:
        (answer,) = yield from each(ground, [(name, ground.shared_call("now", key, ()))])
        if answer is not AWAY:
            return int(answer)
    raise ground.unavailable([SHARED])


def held_by(ground: Ground, queues: Sequence[str], workers: set[str]) -> Talk[list[tuple[int, str, bytes]]]:
    """What these workers hold: (generation, queue, stored id). In steps, whatever the number of leases."""
    found: set[tuple[int, str, bytes]] = set()
    cursors: dict[str, bytes] = dict.fromkeys(queues, b"0")
    while cursors:
        asked = list(cursors.items())
        calls = []
        for queue, cursor in asked:
            key = ground.keys.queue(queue) + b":held"
            calls.append((queue, ask(key, "HSCAN", key, cursor, "COUNT", 1_000)))
        for (queue, _), answer in zip(asked, (yield from each(ground, calls)), strict=True):
            if answer is AWAY:
                del cursors[queue]
                continue
            cursor, fields = answer
            for i in range(0, len(fields), 2):
                held = fields[i + 1]
                at = 8 + (held[7] if len(held) > 7 else 0) + 9
                size = int.from_bytes(held[at : at + 2], "little")
                if held[at + 2 : at + 2 + size].decode(errors="replace") in workers:
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
    rows = [(one.queue, one.stored, one.record, one.now, worker, one.token, 1) for one in came]
    jobs = yield from leased_jobs(ground, rows, lambda row: leased(ground.profiles, *row))
    return Fetched(jobs, max(one.now for one in came), set_aside=ground.asides.take())


def read_handed_over(ground: Ground, came: Sequence[Handover], worker: str) -> list[Job]:
    """Raises UnknownProfile where the server has to be asked for one."""
    return [
        leased(ground.profiles, one.queue, one.stored, one.record, one.now, worker, one.token, 1)
        for one in came
    ]


@isolated
def look(
    ground: Ground,
    queues: Sequence[str],
    timeout: int,
    till: str,
    channel: str,
    offer: str,
    parked: Sequence[str] = (),
) -> Talk[tuple[bool, str, tuple[int, int]]]:
    """Whether there is work (if not, the channel will hear of it), till when the wait is, the news so far."""
    args: list[bytes | str | int] = [timeout, till, channel, offer]
    if ground.apart:
        more = () if ground.clustered else (ground.keys.news,)
        calls = []
        for queue in queues:
            call = ground.call("look", [queue], [*args, *([1] if queue in parked else [])])
            calls.append((queue, call._replace(keys=(*call.keys, *more))))
        news, *answers = yield from any_of(ground, [(SHARED, news_call(ground)), *calls])
        news = (None, None) if news is AWAY else news
        answers = [answer for answer in answers if answer is not AWAY]
    else:
        call = ground.call("look", queues, args + [n for n, queue in enumerate(queues, 1) if queue in parked])
        answers = sure((yield [call._replace(keys=(*call.keys, ground.keys.news))]))
        news = answers[0][2]
    said = till or (answers[0][1].decode() if answers else "")
    return any(answer[0] for answer in answers), said, (whole(news[0]), whole(news[1]))


def pass_on(ground: Ground, queue: str, kind: bytes) -> Talk[None]:
    sure((yield [ground.call("pass", [queue], [kind])]))
