"""Rules about exclusion: unique keys, partitions and limits of queues, and instants of periodic entries.

- A unique key has one holder, and only a holder's key refuses a job.
- How many jobs of a concurrency key or a queue are leased at once, and in which order.
- Each instant of a periodic entry is processed exactly once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby, pairwise
from typing import NamedTuple

from penstock.core.job import Ref, State
from penstock.core.unique import FINISHED_PHASE, QUEUED_PHASE, RUNNING_PHASE
from penstock.verify.ledger.facts import INVOICE, REMINDED, Limited, TickAnswered, Ticking
from penstock.verify.ledger.rules.case import FOR_EVER, Case, Span, broken, leases_of, open_until
from penstock.verify.ledger.rules.ends import is_forgiven
from penstock.verify.ledger.story import Story
from penstock.verify.ledger.verdict import Violation

# ── unique keys ──────────────────────────────────────────────────────────────────────────────────


def uniqueness(case: Case) -> Iterator[Violation]:
    """Check that a unique key has one holder at a time.

    No job may be stored while another certainly holds its key, and a refused duplicate must name a job that
    may have held it. Jobs of a renamed task are compared by their calls: their key is to be the
    same in all releases.
    """
    by_key: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in case.history.stories:
        if story.offer is not None and story.offer.unique:
            by_key[story.ref.queue, _call_of(story) or story.offer.unique].append(story)
    for stories in by_key.values():
        stories.sort(key=lambda story: story.began)
        yield from _two_holders(stories, case)
        for story in stories:
            yield from _turned_away(story, case)


def _call_of(story: Story) -> str:
    """The call of a job of a renamed task; "" for other jobs, whose key alone tells which calls are equal."""
    return story.ref.id.partition(".")[0] if story.ref.id.startswith(INVOICE) else ""


def _two_holders(stories: Sequence[Story], case: Case) -> Iterator[Violation]:
    taken = [story for story in stories if story.acknowledged and not is_forgiven(story, case)]
    if len(taken) < 2:
        return
    spans = sorted(
        (span for story in taken for span in _key_spans(story, taken, case)), key=lambda s: s.begin
    )
    best: list[tuple[int, int]] = []  # the longest holder first
    coming = 0
    for second in taken:
        while coming < len(spans) and spans[coming].begin <= second.began:
            heappush(best, (-spans[coming].end, coming))
            coming += 1
        at = second.acknowledged_at
        if best and at is not None and -best[0][0] > at:
            first = spans[best[0][1]].story
            yield broken(second, "unique", f"its unique key was still held by job {first.ref.id}")


def _key_spans(story: Story, rivals: Sequence[Story], case: Case) -> Iterator[Span]:
    """The spans in which the job certainly held its unique key.

    They begin at the enqueue and end as its rule says. If the rule covers running jobs alone: while the job
    ran, unless another job may have held the key.
    """
    offer = story.offer
    assert offer is not None
    over = FOR_EVER
    if offer.unique_until is not None:
        over = offer.mono + (offer.unique_until - offer.at) * 1_000_000
    spans: list[Span] = []
    states = offer.unique_states
    if states & QUEUED_PHASE:
        spans = [_from_the_enqueue(story, states, over, case)]
    elif states & RUNNING_PHASE and rivals[0] is story:
        first = next(leases_of(story, case), None)
        if first is not None and (len(rivals) == 1 or rivals[1].began > first.begin):
            spans = [first]
    for span in spans:
        if min(span.end, over) > span.begin:
            yield span._replace(end=min(span.end, over))


def _from_the_enqueue(story: Story, states: int, over: int, case: Case) -> Span:
    begin = story.acknowledged_at or story.began
    end = open_until(story, case)
    if not states & RUNNING_PHASE:
        starts = [run.start.mono for run in story.runs]
        # a job that is reclaimed was leased before, by a process that may have died before it recorded that
        lost = story.leases[:1] and story.leases[0].by == "reclaim"
        asked = [begin if lost else lease.since or begin for lease in story.leases]
        end = min([end, *asked, *starts]) if story.leases else begin if story.runs else end
    elif states & FINISHED_PHASE and _completed_at(story, end):
        kept = case.job(story)
        if over != FOR_EVER:
            end = over  # also if the job itself is not kept
        elif kept is not None and kept.state is State.COMPLETED:
            end = FOR_EVER
    return Span(begin, end, begin, story)


def _completed_at(story: Story, mono: int) -> bool:
    """Whether the job was completed at this moment (mono), and no operation followed."""
    applied = [act for act in story.acts if act.terminal and act.applied]
    return (
        len(applied) == 1
        and applied[0].asked.state == "completed"
        and applied[0].asked.mono == mono
        and not story.operations
    )


def _turned_away(story: Story, case: Case) -> Iterator[Violation]:
    """Check for a refused enqueue whose named holder had certainly ended without keeping its key."""
    for verdict in story.verdicts:
        if verdict.verdict not in ("duplicate", "replaced") or story.offers != 1 or case.clock_skewed:
            continue
        holder = case.last.get(Ref(verdict.queue, verdict.holder))
        ended = None if holder is None else _released_at(holder, case)
        if ended is not None and ended < story.began:
            says = f"the enqueue was refused because of job {verdict.holder}, which had ended and held no key"
            yield broken(story, "unique", says)


def _released_at(holder: Story, case: Case) -> int | None:
    """When the job certainly had released its key; None: it may still hold it."""
    offer = holder.offer
    if offer is None or any(op.asked.verb in ("retry", "reschedule", "complete") for op in holder.operations):
        return None
    for act in holder.acts:
        if act.applied and act.terminal and not case.forgiven(*act.call):
            kept = act.asked.state == "completed" and offer.unique_states & FINISHED_PHASE
            return None if kept else act.answered
    told = [op for op in holder.operations if op.asked.verb == "cancel" and op.answer == "cancelled"]
    return min((op.answered for op in told if not case.forgiven(*op.call)), default=None)


# ── concurrency keys and queues ──────────────────────────────────────────────────────────────────


#: A delayed job may join its partition this much before its due time in the ledger (ns).
_ABOUT = 50_000_000


def partitions(case: Case) -> Iterator[Violation]:
    """Check the limit of jobs per key, and the order of ordered jobs."""
    by_key: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in case.history.stories:
        if story.offer is not None and story.offer.partition is not None and story.leases:
            if any(story.accepted("edit")):
                continue  # its new arguments may have another key
            by_key[story.ref.queue, story.offer.partition].append(story)
    for (_, key), stories in by_key.items():
        spans = [span for story in stories for span in leases_of(story, case)]
        for span, at_once in _crowds(spans, _most_of_key):
            yield broken(
                span.story, "limits", f"{len(at_once)} jobs with key {key!r} ran at once: {_ids(at_once)}"
            )
        yield from _order(key, stories, case)


def queue_limits(case: Case) -> Iterator[Violation]:
    """Check `max_running` of each queue for which a limit was recorded."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for story in case.history.stories:
        if story.ref.queue in case.history.limits:
            spans[story.ref.queue] += leases_of(story, case)
    for queue, of_queue in spans.items():
        limit = _Limit(case.history.limits[queue])
        for span, at_once in _crowds(of_queue, limit.most):
            says = f"{len(at_once)} jobs of its queue ran at once: {_ids(at_once)}"
            yield broken(span.story, "limits", says)


def _ids(spans: Iterable[Span]) -> str:
    ids = [span.story.ref.id for span in spans]
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def _crowds(
    spans: list[Span], most: Callable[[Span, Sequence[Span]], int]
) -> Iterator[tuple[Span, list[Span]]]:
    """Yield each span at whose begin more spans were active than allowed, with the active ones."""
    spans.sort(key=lambda span: span.begin)
    ends: list[tuple[int, int]] = []
    active: dict[int, Span] = {}
    for i, span in enumerate(spans):
        while ends and ends[0][0] <= span.begin:
            del active[heappop(ends)[1]]
        active[i] = span
        heappush(ends, (span.end, i))
        if len(active) > 1:
            at_once = list(active.values())
            if len(at_once) > most(span, at_once):
                yield span, at_once


def _most_of_key(_: Span, at_once: Sequence[Span]) -> int:
    """The largest limit of these jobs: the limit of the last one to start applies, and that is unknown."""
    return max(span.story.offer.partition_most for span in at_once if span.story.offer is not None)


class _Limit:
    """A queue's `max_running` over time.

    A value may be in force from its call to the answer of the next call.
    """

    def __init__(self, said: Sequence[Limited]) -> None:
        self._values: list[tuple[int, int, int]] = []  # value, from, until
        asked = [one for one in said if not one.told]
        told = [one for one in said if one.told]
        if asked:
            self._values.append((FOR_EVER, 0, self._settled(told, asked[0])))
        for i, one in enumerate(asked):
            value = FOR_EVER if one.max_running is None else one.max_running
            until = self._settled(told, asked[i + 1]) if i + 1 < len(asked) else FOR_EVER
            self._values.append((value, one.mono, until))

    @staticmethod
    def _settled(told: Sequence[Limited], asked: Limited) -> int:
        """When this change was certainly in force."""
        return next((one.mono for one in told if one.pid == asked.pid and one.mono > asked.mono), FOR_EVER)

    def most(self, span: Span, _: Sequence[Span]) -> int:
        """The largest limit that may have been in force when this job was leased."""
        held = [v for v, begin, until in self._values if begin <= span.begin and until >= span.asked]
        return max(held, default=FOR_EVER)


# ── order ────────────────────────────────────────────────────────────────────────────────────────


class _OrderedJob(NamedTuple):
    """When an ordered job joined its partition (between `first` and `last`), and when it was leased: first at
    `leased`, last not before `again`."""

    first: int
    last: int
    call: tuple[int, int]  # the answer of its enqueue call (mono, pid)
    leased: int
    again: int
    story: Story


def _order(concurrency_key: str, stories: Iterable[Story], case: Case) -> Iterator[Violation]:
    """Check that an ordered job is not leased before all jobs that joined before it are done."""
    jobs = [job for story in stories if (job := _ordered_job(story, case)) is not None]
    jobs.sort(key=lambda job: job.last)
    ends = [job.last for job in jobs]
    latest: list[_OrderedJob] = []  # of all up to this one, the one that was leased last
    for job in jobs:
        latest.append(max(latest[-1], job, key=_again) if latest else job)
    for job in jobs:
        n = bisect_right(ends, job.first - 1)
        before = latest[n - 1] if n else None
        if before is not None and before.again > job.leased:
            yield _overtaken(concurrency_key, job, before)
    by_call = sorted(jobs, key=lambda job: (job.call, job.first))
    for call, together in groupby(by_call, key=lambda job: job.call):
        if call[0]:
            yield from _order_of_call(concurrency_key, list(together))


def _order_of_call(concurrency_key: str, together: Sequence[_OrderedJob]) -> Iterator[Violation]:
    """Check the order of jobs of one enqueue call: they join in the order of the call."""
    before = together[0]
    for job in together[1:]:
        if before.again > job.leased:
            yield _overtaken(concurrency_key, job, before)
        before = max(before, job, key=_again)


def _again(job: _OrderedJob) -> int:
    return job.again


def _overtaken(concurrency_key: str, job: _OrderedJob, before: _OrderedJob) -> Violation:
    key, earlier = concurrency_key, before.story.ref.id
    says = f"the job ran before {earlier} was done, which precedes it in the order of key {key!r}"
    return broken(job.story, "order", says)


def _ordered_job(story: Story, case: Case) -> _OrderedJob | None:
    offer = story.offer
    if offer is None or not offer.ordered:
        return None
    if any(op.asked.verb in ("retry", "reschedule") for op in story.operations):
        return None  # the operation gave the job another place
    leased, enqueued = story.leases[0].mono, story.acknowledged_call
    calls = [story.call_of(story.leases[0]), *([] if enqueued is None else [enqueued])]
    if any(case.forgiven(*call) for call in calls):
        return None
    again = max(story.call_of(lease)[0] for lease in story.leases)
    at = story.acknowledged_at
    if not offer.delayed:
        pid = next((v.pid for v in story.verdicts if v.mono == at), 0)
        return _OrderedJob(offer.mono, leased if at is None else at, (at or 0, pid), leased, again, story)
    due = case.history.mono(offer.due)
    if case.clock_skewed or due is None:
        return None
    return _OrderedJob(
        max(offer.mono, due - _ABOUT - case.slack * 1_000_000), leased, (0, 0), leased, again, story
    )


# ── periodic entries ─────────────────────────────────────────────────────────────────────────────


#: Process, revision and watermark of a tick call; tells a repeated call from the call before.
_TickKey = tuple[int, int, int]


class _EntryMove(NamedTuple):
    """A tick that was or may have been applied: the entry advanced from `watermark` to `to`."""

    revision: int
    watermark: int
    to: int
    call: tuple[int, int]  # when it was sent and answered (mono)
    certain: bool


def periods(case: Case) -> Iterator[Violation]:
    for (queue, name), ticks in _by_entry(case.history.ticks).items():
        for says in _broken_chain(_moves(ticks), case):
            yield Violation("periodic", f"entry {name!r}: {says}", queue)
    for story in case.history.stories:
        if story.offer is not None and story.offer.entry:
            yield from _enqueued_once(story, case)


def _by_entry(
    ticks: Iterable[Ticking | TickAnswered],
) -> dict[tuple[str, str], list[Ticking | TickAnswered]]:
    found: dict[tuple[str, str], list[Ticking | TickAnswered]] = defaultdict(list)
    for tick in ticks:
        found[tick.queue, REMINDED.get(tick.name, tick.name)].append(tick)
    return found


def _moves(ticks: Iterable[Ticking | TickAnswered]) -> list[_EntryMove]:
    """The ticks that were or may have been applied, by watermark.

    A `stale` tick counts too: its first reply may have been lost, and the repeated call found it applied.
    """
    asked: dict[_TickKey, Ticking] = {}
    moves: list[_EntryMove] = []
    for tick in ticks:
        key = (tick.pid, tick.revision, tick.watermark)
        if isinstance(tick, Ticking):
            if key in asked:
                moves.append(_move(asked[key], tick.mono, certain=False))
            asked[key] = tick
            continue
        asking = asked.pop(key, None)
        if asking is not None and tick.answer in ("applied", "unknown", "stale"):
            moves.append(_move(asking, tick.mono, certain=tick.answer == "applied"))
    moves += [_move(asking, asking.mono, certain=False) for asking in asked.values()]
    return sorted(moves, key=lambda move: (move.watermark, move.call[1]))


def _move(asking: Ticking, answered: int, *, certain: bool) -> _EntryMove:
    call = (asking.mono, answered)
    return _EntryMove(asking.revision, asking.watermark, asking.to, call, certain)


def _broken_chain(moves: list[_EntryMove], case: Case) -> Iterator[str]:
    certain = [move for move in moves if move.certain and not case.forgiven(*move.call)]
    uncertain = {move.watermark for move in moves if not move.certain or case.forgiven(*move.call)}
    for before, after in pairwise(certain):
        if after.watermark < before.to:
            yield (
                f"the instants before {before.to} were processed twice, "
                f"from {before.watermark} and {after.watermark}"
            )
        elif after.watermark > before.to and after.revision == before.revision and before.to not in uncertain:
            yield f"the instants between {before.to} and {after.watermark} were skipped"


def _enqueued_once(story: Story, case: Case) -> Iterator[Violation]:
    """Check that an instant has one job: a second story with its id would be a second job."""
    if any(op.asked.verb in ("delete", "move", "retry") for op in story.operations) or case.is_purged(story):
        return
    if not case.is_last(story) and not any(case.forgiven(*call) for call in story.calls):
        yield broken(story, "periodic", "its instant enqueued a second job later")
