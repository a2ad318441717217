"""settle: apply the outcomes of attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from penstock.core.errors import StoreCorrupt
from penstock.core.job import MAX_ERRORS, Lease, NewJob, State
from penstock.core.lifecycle import Transition, set_aside
from penstock.stores.contract import Settled, Settlement, no_outcome
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.isolation import MISSING, call_each
from penstock.stores.redis.layout import UNWRITABLE, packed
from penstock.stores.redis.script_arguments import (
    BATCH,
    HEAVY,
    CannotWrite,
    chunks,
    form_of,
    in_bytes,
    lease_prefix,
    numbered,
    tail_of,
    transition_bytes,
)
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs.delivering import deliver
from penstock.stores.redis.verbs.flow_store import deliver_ends
from penstock.stores.redis.verbs.known_queues import register, register_call
from penstock.stores.redis.wire.calls import Call

_GENERATIONS = 1 << 56
_LATER = ord("l")
_SETTLED = {ord("a"): Settled.APPLIED, ord("s"): Settled.STALE, ord("g"): Settled.GONE}


def settle(context: Context, settlements: Sequence[Settlement]) -> CallPlan[list[Settled]]:
    """Apply outcomes to jobs whose lease is still held; each is answered APPLIED, STALE or GONE."""
    alike = _are_alike(settlements)
    for one in () if alike else settlements:
        no_outcome(one.transition)
    try:
        return (yield from (_settle_alike if alike else _settle)(context, settlements))
    except StoreCorrupt:  # the caller repeats it, queue by queue; a repeat here would find settled jobs STALE
        context.corrupt.isolate()
        raise
    except CannotWrite:  # raised before anything was sent
        return (yield from _settle(context, [_writable(context, one) for one in settlements]))


def _are_alike(settlements: Sequence[Settlement]) -> bool:
    """Whether these are several ends of one queue, of the usual kind: completed, nothing kept or followed."""
    if not 1 < len(settlements) <= BATCH or not _light(settlements[0]):
        return False
    to, queue = settlements[0].transition, settlements[0].lease.queue
    return all(
        one.transition is to and one.result is None and not one.then and one.lease.queue == queue
        for one in settlements
    )


def _settle_alike(context: Context, settlements: Sequence[Settlement]) -> CallPlan[list[Settled]]:
    """As `_settle`, for settlements that are alike: 0.9 instead of 1.3 µs for each."""
    queue, to = settlements[0].lease.queue, settlements[0].transition
    head = b"\1" + (1).to_bytes(2, "little") + len(settlements).to_bytes(2, "little") + b"\1"
    try:
        args: list[bytes | str | int] = [context.floor, MAX_ERRORS, 0, 1, transition_bytes(to), head]
        args += _plain(settlements, context.stored_ids.take)
    except UNWRITABLE as error:
        raise CannotWrite(str(error)) from error
    (answer,) = yield from call_each(
        context, [(queue, context.call("settle", [queue], args, repeatable=False))]
    )
    if answer is MISSING:
        return [Settled.UNKNOWN] * len(settlements)
    codes, highest, out = answer
    context.floor = max(context.floor, int(highest))
    if out:
        yield from _deliver(context, queue, out)
    if _LATER in codes:
        done = [_SETTLED.get(code) for code in codes]
        left = [one for one, end in zip(settlements, done, strict=True) if end is None]
        rest = iter((yield from _settle(context, left)))
        return [next(rest) if end is None else end for end in done]
    return [_SETTLED[code] for code in codes]


def _writable(context: Context, one: Settlement) -> Settlement:
    """Return the settlement, or one that makes the job dead if the settlement cannot be written."""
    try:
        _settle_call(context, [one], {one.lease.queue: 1}, [one.lease.queue])
    except CannotWrite as error:
        return Settlement(one.lease, set_aside(f"its outcome cannot be written: {error}"))
    return one


def _settle(context: Context, settlements: Sequence[Settlement]) -> CallPlan[list[Settled]]:
    """Send settlements in parts; send those again that a script answers with LATER."""
    calls: list[tuple[str, Call]] = []
    places: list[Sequence[int]] = []
    queues = [one.lease.queue for one in settlements] + [
        new.queue for one in settlements if one.then for new in one.then
    ]
    for numbers, names in numbered(context, queues):
        of_these = [place for place, one in enumerate(settlements) if one.lease.queue in numbers]
        for part in _by_weight(settlements, of_these):
            call = _settle_call(context, [settlements[place] for place in part], numbers, names)
            calls.append((names[0], call))
            places.append(part)
    settled: list[Settled] = [Settled.GONE] * len(settlements)
    following = {new.queue for one in settlements for new in one.then}
    if context.unlisted(following):
        yield from register(context, following)
    if following:  # again, after the jobs: a queue may have been dropped since it was put on the list
        calls.append((SHARED, register_call(context, following)))
    if calls:
        left: list[tuple[str, list[bytes]]] = []
        later: list[int] = []  # settlements that would have made the script run too long
        answers = yield from call_each(context, calls)
        for part, answer in zip(places, answers, strict=not following):
            if answer is MISSING:
                for place in part:
                    settled[place] = Settled.UNKNOWN
                continue
            codes, highest, out = answer
            context.floor = max(context.floor, int(highest))
            for place, code in zip(part, codes, strict=True):
                if code == _LATER:
                    later.append(place)
                else:
                    settled[place] = _SETTLED[code]
            if out:
                left.append((settlements[part[0]].lease.queue, out))
        for queue, entries in left:
            yield from _deliver(context, queue, entries)
        if later:
            rest = yield from _settle(context, [settlements[place] for place in later])
            for place, answer in zip(later, rest, strict=True):
                settled[place] = answer
    return settled


def _deliver(context: Context, queue: str, names: Sequence[bytes]) -> CallPlan[None]:
    """Deliver what a script has left: entries of `out` (jobs that follow) and `ends` (of nodes of flows)."""
    following = [(queue, name) for name in names if b"/" not in name]
    if following:
        yield from deliver(context, following)
    ends = [(name.partition(b"/")[2].decode(), name.partition(b"/")[0]) for name in names if b"/" in name]
    if ends:
        yield from deliver_ends(context, ends)


def _by_weight(settlements: Sequence[Settlement], places: Sequence[int]) -> list[Sequence[int]]:
    """Split positions into parts that block the server for at most 5 ms, the last part first.

    Jobs of a later part are put to the head before those of an earlier part, so the order of the call is
    kept.
    """
    if all(_light(settlements[place]) for place in places):
        return chunks(places, BATCH)
    sizes = [len(one.result or b"") + sum([len(new.payload) for new in one.then]) for one in settlements]
    parts = [lighter for part in chunks(places, HEAVY) for lighter in in_bytes(part, sizes)]
    return parts[::-1]


def _light(one: Settlement) -> bool:
    """Return True if a settlement only removes its job."""
    return one.transition.state is State.COMPLETED and one.transition.keep <= 0 and not one.then


def _settle_call(
    context: Context, settlements: Sequence[Settlement], numbers: dict[str, int], names: list[str]
) -> Call:
    """Return the call for settlements of one part; raises CannotWrite."""
    try:
        args = _settle_args(context, settlements, numbers)
    except UNWRITABLE as error:
        raise CannotWrite(str(error)) from error
    # not repeatable: a second run would not find the lease, so the caller looks up the state of the job
    return context.call("settle", names, args, repeatable=False)


def _settle_args(
    context: Context, settlements: Sequence[Settlement], numbers: dict[str, int]
) -> list[bytes | str | int]:
    """Return the arguments of settle.lua: profiles, transitions, and runs that share a transition."""
    profiles: dict[bytes, bytes] = {}
    transitions: dict[Transition, int] = {}
    runs: list[bytes | str | int] = []
    for (queue, plain, number), some in groupby(settlements, _run_of(transitions)):
        batch = list(some)
        head = bytes((numbers[queue],)) + number.to_bytes(2, "little") + len(batch).to_bytes(2, "little")
        runs.append(head + bytes((plain,)))
        if plain:
            runs += _plain(batch, context.stored_ids.take)
            continue
        for one in batch:
            result = b"" if one.result is None else b"r" + one.result
            following = _following(context, one.then, numbers, profiles)
            runs += (packed(one.lease.id), lease_prefix(one.lease), result, following)
    args: list[bytes | str | int] = [context.floor, MAX_ERRORS, len(profiles)]
    for pair in profiles.items():
        args += pair
    args += [len(transitions), *map(transition_bytes, transitions), *runs]
    return args


def _plain(batch: Sequence[Settlement], take: Callable[[str], bytes]) -> list[bytes]:
    """Return the id and the lease prefix of each settlement.

    As `lease_prefix`, but makes the bytes that all of them share only once: saves 0.5 of 3 µs per job.
    """
    args: list[bytes] = []
    last, token = None, b""
    for one in batch:
        lease = one.lease
        if isinstance(lease, Lease) and lease.token is last and 0 <= lease.generation < _GENERATIONS:
            args += (take(lease.id), lease.generation.to_bytes(7, "big") + token)
            continue
        whole = lease_prefix(lease)
        args += (take(lease.id), whole)
        if isinstance(lease, Lease) and len(whole) > 8:
            last, token = lease.token, whole[7:]
    return args


def _run_of(transitions: dict[Transition, int]) -> Callable[[Settlement], tuple[str, bool, int]]:
    """Return a function for the key of a run: queue, whether plain (no result, no followers), transition."""
    last: list[Any] = [None, 0]

    def run_of(one: Settlement) -> tuple[str, bool, int]:
        to = one.transition
        if to is not last[0]:  # usually it is; hashing costs more than the rest of this function
            last[:] = to, transitions.setdefault(to, len(transitions) + 1)
        return one.lease.queue, one.result is None and not one.then, last[1]

    return run_of


def _following(
    context: Context, then: Sequence[NewJob], numbers: dict[str, int], profiles: dict[bytes, bytes]
) -> bytes:
    """Encode the jobs that follow a settled one, as settle.lua reads them."""
    parts: list[bytes] = []
    for new in then:
        number = numbers.get(new.queue, 0)
        if number:
            digest, text = context.profiles.write(new)
            profiles[digest] = text
            facts = (packed(new.id), form_of(new, number), tail_of(new, digest))
        else:
            facts = (b"", b"", msgspec.msgpack.encode(new))
        parts.append(bytes((number,)))
        parts += [part for fact in facts for part in (len(fact).to_bytes(4, "little"), fact)]
    return b"".join(parts)
