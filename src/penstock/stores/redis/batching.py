"""Split a call into parts that block the server for 5 ms at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from penstock.core.job import Ref
from penstock.stores.redis.context import Context
from penstock.stores.redis.keys import packed

__all__ = [
    "BATCH",
    "CHANGED",
    "HEAVY",
    "MOST_BYTES",
    "by_queue",
    "chunks",
    "id_list",
    "in_bytes",
    "jobs_from",
    "numbered",
    "parts_of",
]

T = TypeVar("T")

#: Most jobs of one script, which then blocks the server for at most 5 ms.
BATCH = 2_000
#: Most jobs of one script where each job costs more.
HEAVY = 250
#: Most jobs that one script of an operator changes, or prune removes: up to 55 µs for each, and two to three
#: times as long beside a busy worker on the same cores.
CHANGED = 40
#: Most bytes of payloads, results etc. in one script; a job with more is sent alone.
MOST_BYTES = 1 << 20


def by_queue(refs: Sequence[Ref]) -> dict[str, list[int]]:
    """Return the positions of refs in a call, by queue."""
    groups: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        groups.setdefault(ref.queue, []).append(place)
    return groups


def parts_of(refs: Sequence[Ref], most: int) -> list[tuple[str, Sequence[int]]]:
    """Return queues and positions as `by_queue` does, in parts of at most `most` positions."""
    return [(queue, part) for queue, places in by_queue(refs).items() for part in chunks(places, most)]


def chunks(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Split items into parts of at most `most`."""
    if len(items) <= most:
        return [items] if items else []
    return [items[i : i + most] for i in range(0, len(items), most)]


def in_bytes(places: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """Split positions, in order, into parts of at most MOST_BYTES; `sizes`: bytes at each position."""
    starts, room = [0], MOST_BYTES
    for n, place in enumerate(places):
        room -= sizes[place]
        if room < 0 and n > starts[-1]:
            starts.append(n)
            room = MOST_BYTES - sizes[place]
    return [places[start:end] for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


def id_list(refs: Sequence[Ref], places: Sequence[int]) -> list[bytes | str | int]:
    """Return the stored ids of the refs at these positions."""
    return [packed(refs[place].id) for place in places]


def jobs_from(answer: list[Any]) -> list[tuple[bytes, bytes, bytes | None]]:
    """Return rows of (stored id, record, lease or None) from a flat answer."""
    return list(zip(answer[0::3], answer[1::3], answer[2::3], strict=True))


def numbered(context: Context, queues: Sequence[str]) -> Iterator[tuple[dict[str, int], list[str]]]:
    """Yield lists of queues that one script can span, each with the numbers of its queues in the script."""
    names = list(dict.fromkeys(queues))
    most = 1 if context.apart else 250
    for some in chunks(names, most):
        yield {name: n for n, name in enumerate(some, 1)}, list(some)
