"""list_next: the jobs of a queue in one state, in the order in which they leave it."""

from __future__ import annotations

from penstock.core.job import Job, State
from penstock.stores.contract import Page, page_size
from penstock.stores.cursors import not_a_cursor, numbers_of
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.layout import NUMBER
from penstock.stores.redis.reading import shown

__all__ = ["list_next"]


def list_next(context: Context, queue: str, state: State, after: str | None, limit: int) -> CallPlan[Page]:
    """Return a page of the jobs of one queue in one state."""
    limit = page_size(state, limit)
    args: list[bytes | str | int] = [NUMBER[state], limit, *_arguments(after, state)]
    (answer,) = raise_errors((yield [context.call("list_next", [queue], args)]))
    more, number, member, priority, *facts = answer
    rows = [(id, record, None) for id, record in zip(facts[0::2], facts[1::2], strict=True)]
    jobs: list[Job] = yield from shown(context, queue, rows)
    if not more:
        return Page(jobs, None)
    cursor = f"{number.decode()}:{member.hex()}"
    return Page(jobs, f"{priority}:{cursor}" if state is State.AVAILABLE else cursor)


def _arguments(after: str | None, state: State) -> list[bytes | str | int]:
    """Return the number, the member and the priority of a cursor; raises ConfigError if it is not one."""
    if after is None:
        return ["", "", ""]
    numbers, _, member = after.rpartition(":")
    try:
        at = bytes.fromhex(member)
    except ValueError:
        raise not_a_cursor(after) from None
    if state is not State.AVAILABLE:
        return [*numbers_of(numbers, 1), at, ""]
    priority, place = numbers_of(numbers, 2)
    return [place, at, priority]
