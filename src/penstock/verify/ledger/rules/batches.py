"""Each member of a group is in one batch, whose members stay what they are; or it is still collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.core.job import Ref
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["batches"]


def batches(case: Case, *, exclusive: bool) -> Iterator[Violation]:
    """`exclusive`: nobody else enqueues, so each member was offered here."""
    for story in case.history.stories:
        if story.members:
            yield from _of_batch(story, case, exclusive)
        if len(story.batches) > 1:
            yield from _of_member(story, case)


def _of_batch(batch: Story, case: Case, exclusive: bool) -> Iterator[Violation]:
    twice = [id for id, n in Counter(batch.members).items() if n > 1]
    if twice:
        yield broken(batch, "groups", f"{twice[0]} is in it {Counter(batch.members)[twice[0]]} times")
    if any(lease.members != batch.members and not case.forgiven(lease.mono) for lease in batch.leases):
        yield broken(batch, "groups", "its members have changed from one lease to the next")
    strange = [id for id in batch.members if Ref(batch.ref.queue, id) not in case.last]
    if strange and exclusive:
        yield broken(batch, "groups", f"its member {strange[0]} was never offered")
    for id in batch.members:
        member = case.last.get(Ref(batch.ref.queue, id))
        if member is not None and member.offer is not None and not member.offer.grouped:
            yield broken(batch, "groups", f"its member {id} is not one that is collected")


def _of_member(member: Story, case: Case) -> Iterator[Violation]:
    """Who retries or reschedules one alone puts it into another batch, and so may a store that forgets."""
    if any(op.asked.verb in ("retry", "reschedule") for op in member.operations):
        return
    lasting = [b for b in member.batches if not all(case.forgiven(lease.mono) for lease in b.leases)]
    if len(lasting) > 1:
        names = " and ".join(batch.ref.id for batch in lasting)
        yield broken(member, "groups", f"it is in more than one batch: {names}")
