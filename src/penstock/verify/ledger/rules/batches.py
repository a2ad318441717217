"""Rules about batches: each collected job is in at most one batch, and a batch keeps its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from penstock.core.job import Ref
from penstock.verify.ledger.facts import Leased
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["batches"]


def batches(case: Case, *, exclusive: bool) -> Iterator[Violation]:
    """Check all batches.

    `exclusive`: only the ledger's processes enqueue, so every member is in the ledger.
    """
    for story in case.history.stories:
        if story.members:
            yield from _of_batch(story, case, exclusive)
        if len(story.batches) > 1:
            yield from _of_member(story, case)


def _of_batch(batch: Story, case: Case, exclusive: bool) -> Iterator[Violation]:
    twice = [id for id, n in Counter(batch.members).items() if n > 1]
    if twice:
        n = Counter(batch.members)[twice[0]]
        yield broken(batch, "batches", f"the batch has its member {twice[0]} {n} times")
    if any(_has_changed(batch, one, other, case) for one, other in combinations(batch.leases, 2)):
        yield broken(batch, "batches", "its members have changed from one lease to the next")
    unknown = [id for id in batch.members if Ref(batch.ref.queue, id) not in case.last]
    if unknown and exclusive:
        yield broken(batch, "batches", f"its member {unknown[0]} was never enqueued")
    for id in batch.members:
        member = case.last.get(Ref(batch.ref.queue, id))
        if member is not None and member.offer is not None and not member.offer.collected:
            yield broken(batch, "batches", f"its member {id} is not a job to be collected")


def _has_changed(batch: Story, one: Leased, other: Leased, case: Case) -> bool:
    """Whether the batch kept the lease `one`, and then had other members at the lease `other`.

    A batch may be formed again if the store has lost a lease, also a lease that a worker reads later than
    that of the new batch.
    """
    if one.members == other.members or case.forgiven(*batch.call_of(one)):
        return False
    sent, received = batch.call_of(other)
    return sent >= one.mono or not case.forgiven(sent, received)


def _of_member(member: Story, case: Case) -> Iterator[Violation]:
    """Check that a job is in one batch only.

    A retry or reschedule of the job alone may put it into another batch, and so may a lost write.
    """
    if any(op.asked.verb in ("retry", "reschedule") for op in member.operations):
        return
    lasting = [batch for batch in member.batches if _had_certainly(batch, member, case)]
    if len(lasting) > 1:
        names = " and ".join(batch.ref.id for batch in lasting)
        yield broken(member, "batches", f"the job is in more than one batch: {names}")


def _had_certainly(batch: Story, member: Story, case: Case) -> bool:
    """Whether the batch had this member at a lease that the store cannot have lost."""
    having = [lease for lease in batch.leases if member.ref.id in lease.members]
    return any(not case.forgiven(*batch.call_of(lease)) for lease in having)
