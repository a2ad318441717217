"""Wait for jobs to end: find those that have ended, and request a notification about the others."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Job, Ref
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.isolation import MISSING, call_any, skips_corrupt_queues
from penstock.stores.redis.layout import id_of
from penstock.stores.redis.script_arguments import BATCH, id_list, parts_of
from penstock.stores.redis.verbs.producing import MOST_QUEUES, Part, get


@skips_corrupt_queues
def find_ended(
    context: Context, refs: Sequence[Ref], channel: str, seconds: float
) -> CallPlan[dict[Ref, Job | None]]:
    """Return the jobs that have ended, None for those that do not exist.

    The channel is notified of the ends of the others for `seconds`.
    """
    open = yield from _open_ones(
        context, refs, channel, max(0, int(seconds * 1000))
    )  # or whose state is unknown
    over = [ref for ref in refs if ref not in open]
    jobs = (yield from get(context, over)) if over else []
    # a job that was retried meanwhile has not ended any more
    return {ref: job for ref, job in zip(over, jobs, strict=True) if job is None or job.ended}


def _open_ones(context: Context, refs: Sequence[Ref], channel: str, timeout: int) -> CallPlan[set[Ref]]:
    """Return the jobs that have not ended, and those of queues that cannot be used now."""
    groups = _together(context, parts_of(refs, BATCH))
    calls = []
    for group in groups:
        args: list[bytes | str | int] = [channel, timeout]
        for _, part in group:
            args += (len(part), *id_list(refs, part))
        calls.append((group[0][0], context.call("watch_ends", [queue for queue, _ in group], args)))
    answers = yield from call_any(context, calls)
    open: set[Ref] = set()
    for group, answer in zip(groups, answers, strict=True):
        if answer is MISSING:
            open |= {refs[place] for _, part in group for place in part}
            continue
        for (queue, _), ids in zip(group, answer, strict=True):
            open |= {Ref(queue, id_of(id)) for id in ids}
    return open


def _together(context: Context, parts: list[Part]) -> list[list[Part]]:
    """Combine parts for one script each: a few queues together, or on a Cluster each queue alone."""
    groups: list[list[Part]] = []
    room = 0
    for part in parts:
        if context.queue_by_queue or len(part[1]) > room or len(groups[-1]) == MOST_QUEUES:
            groups.append([])
            room = BATCH
        groups[-1].append(part)
        room -= len(part[1])
    return groups
