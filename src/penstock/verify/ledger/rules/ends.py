"""Rules about ends: an acknowledged job ends exactly once, and is kept for its retention.

An operator's act takes effect exactly once. A collected job is in at most one batch and ends with it; a batch
keeps its members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from penstock.core.job import QUEUED, TERMINAL, Job, Ref, State
from penstock.stores.contract import QueueInfo
from penstock.verify.ledger.facts import Answered, Leased
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.store_calls import arguments_text
from penstock.verify.ledger.story import TERMINAL_STATES, Act, OperatorAction, Story
from penstock.verify.ledger.verdict import Violation

#: The states of jobs that a discard makes dead. A collecting job may be in a batch, and then it stays.
_DISCARDED = {state.value for state in (*QUEUED, State.SUSPENDED)} - {State.COLLECTING.value}
#: The states of jobs that had ended, and that an operator completes.
_FAILED = (State.DEAD.value, State.CANCELLED.value)
#: A store may count a retention from slightly before the time in the ledger (ms).
_ABOUT = 1_000


def end_of(story: Story, case: Case) -> tuple[str, list[Violation]]:
    """How the job ended (a terminal state, deleted, unfinished, lost, forgiven, never), and its findings."""
    job = case.job(story)
    if not _taken(story) and not (story.of_flow and job is not None):
        return "never", _there_though_refused(story, job)
    batches = [batch for batch in story.batches if not _was_left_out(story, batch, case)]
    if batches and not _ends(story) and not any(_ends_by_acts(story)):
        return _end_of_member(story, batches, case, job)
    ends, undone = _certain_ends(story, case)
    told = {act.asked.state for act in ends}
    perhaps = {act.asked.state for act in undone}
    for act, state in _ends_by_acts(story):
        certain = not case.forgiven(*act.call) and _stays(story, act)
        (told if certain else perhaps).add(state)
    wrong = _ended_twice(story, ends, told)
    if job is not None:
        if story.of_flow and case.forgiven:
            perhaps.add("cancelled")  # its flow has lost another end, run this job again, and stopped it
        return _kept_end(story, job, told, perhaps, wrong)
    if _deleted(story, case):
        return "deleted", wrong
    lasting, ends = bool(ends), ends or undone
    by_act = max(told | perhaps, default=None)
    end = ends[-1].asked.state if ends else by_act or _presumed(story, case)
    if end is None:
        return _gone(story, case, wrong)
    must_be_there = case.followed and case.is_last(story) and not case.is_purged(story)
    if lasting and must_be_there and not case.clock_skewed:
        until = case.history.at(ends[-1].asked) + ends[-1].asked.keep - _ABOUT
        if case.now < until:
            says = f"the job ended as {end} and must still be kept, but is not in the store"
            wrong.append(broken(story, "kept", says))
    return end, wrong


def unseen_dead(case: Case, queues: Iterable[QueueInfo]) -> Counter[str]:
    """The dead jobs of each queue that the store counts, and whose end is in no ledger.

    A supervisor writes no ledger. The job of a killed worker that it makes dead has no other end there.
    """
    dead = Counter({info.name: info.counts.get(State.DEAD, 0) for info in queues})
    for story in case.history.stories:
        if any(act.asked.state == State.DEAD.value and act.terminal for act in _ends(story)):
            dead[story.ref.queue] -= 1
    return dead


def is_forgiven(story: Story, case: Case) -> bool:
    """Whether the store may have lost this job: every call that proves it was stored touches a forgiven span.

    If its producer got no answer, the enqueue call counts until the job was first seen.
    """
    calls = [story.call_of(lease) for lease in story.leases]
    calls += [act.call for act in story.acts if act.applied]
    if not all(case.forgiven(*call) for call in calls):
        return False
    told = [
        (v, call)
        for v, call in zip(story.verdicts, story.calls, strict=True)
        if v.verdict in ("new", "follows", "unreplicated")
    ]
    if told:
        return all(_may_be_forgotten(story, v, call, case) for v, call in told)
    seen = min((answered for _, answered in [*story.calls, *calls]), default=story.began)
    return story.unknown and case.forgiven(story.began, seen)


def _may_be_forgotten(story: Story, told: Answered, call: tuple[int, int], case: Case) -> bool:
    """Whether the store may lose an acknowledged enqueue.

    A producer's enqueue waits for replicas. Jobs enqueued by a tick or a settlement do not, nor does one
    whose producer got `unreplicated`.
    """
    by_producer = told.verdict == "new" and story.offer is not None and not story.offer.entry
    return case.forgiven.enqueue(*call) if by_producer else case.forgiven(*call)


def _taken(story: Story) -> bool:
    return story.acknowledged or bool(story.leases or story.runs)


def _gone(story: Story, case: Case, wrong: list[Violation]) -> tuple[str, list[Violation]]:
    if case.is_purged(story):
        return "deleted", wrong
    if is_forgiven(story, case):
        return "forgiven", wrong
    if case.unseen_dead[story.ref.queue] > 0:
        case.unseen_dead[story.ref.queue] -= 1
        return State.DEAD.value, wrong
    says = "the job was acknowledged, has not ended, and is not in the store"
    if not case.is_last(story):
        says = "its id was used again before the job had ended"
    return "lost", [*wrong, broken(story, "lost", says)]


def _there_though_refused(story: Story, job: Job | None) -> list[Violation]:
    verdicts = {v.verdict for v in story.verdicts}
    if job is not None and not story.unknown and not verdicts & {"exists", "duplicate", "skipped"}:
        said = ", ".join(sorted(verdicts)) or "nothing"
        return [broken(story, "refused", f"the store answered {said} to its enqueue, but has the job")]
    return []


def _is_over(story: Story, act: Act | OperatorAction) -> bool:
    """Whether an operator has certainly completed the job after this end, or retried it, as a new job.

    A running job cannot be retried, so no outcome of a lease from before the retry ends the new job.
    """
    ended = act.answered if act.answer is not None else act.asked.mono
    if isinstance(act, Act):
        leases = (lease.mono for lease in story.leases if lease.token == act.asked.token)
        ended = min([ended, *leases])
    return any(op.certain and op.asked.mono >= ended for op in _overruling(story, act))


def _stays(story: Story, act: Act | OperatorAction) -> bool:
    """Whether no retry, and no completion by an operator, may have followed this end."""
    return not any(op.until > act.asked.mono for op in _overruling(story, act))


def _overruling(story: Story, act: Act | OperatorAction) -> Iterator[OperatorAction]:
    """The operations besides this one after which an earlier end of the job counts no longer."""
    yield from story.accepted("retry")
    for op in story.accepted("complete"):
        if op is not act and (not op.certain or op.answer in _FAILED):
            yield op


def _ends(story: Story) -> list[Act]:
    """The ends of the job since its last retry, or perhaps before it."""
    return [a for a in story.acts if a.terminal and a.applied and not _is_over(story, a)]


def _certain_ends(story: Story, case: Case) -> tuple[list[Act], list[Act]]:
    """The ends of the job: the certain ones, and those that the store may have lost, or a retry undone."""
    ends = _ends(story)
    lasting = [act for act in ends if _stays(story, act) and not case.forgiven(*act.call)]
    return lasting, [act for act in ends if act not in lasting]


def _ends_by_acts(story: Story) -> Iterator[tuple[OperatorAction, str]]:
    """The acts of operators that ended the job, according to the store, and its state then."""
    ending = {
        "cancel": (("cancelled",), "cancelled"),
        "discard": (_DISCARDED, "dead"),
        "complete": ((*_DISCARDED, *_FAILED), "completed"),
    }
    for op in story.operations:
        answers, state = ending.get(op.asked.verb, ((), ""))
        if op.answer in answers and not _is_over(story, op):
            yield op, state


def _deleted(story: Story, case: Case) -> bool:
    """Whether the job was removed, or moved to another queue, which is another job there."""
    if any(story.accepted("delete")) or any(story.accepted("move")):
        return True
    deletes = (op for op in story.operations if op.asked.verb == "delete" and op.answer == "")
    return any(_may_be_repeated(op, case) for op in deletes)


def _may_be_repeated(op: OperatorAction, case: Case) -> bool:
    """Whether a fault of the store may have swallowed the first reply to this call: the client repeats it."""
    sent, answered = op.call
    return any(
        not fault.target and fault.mono <= answered and sent <= fault.mono + int(fault.seconds * 1e9)
        for fault in case.history.faults
    )


def _ended_twice(story: Story, ends: Sequence[Act], told: set[str]) -> list[Violation]:
    if len(ends) > 1 or len(told) > 1:
        states = " and ".join([act.asked.state for act in ends] if len(ends) > 1 else sorted(told))
        return [broken(story, "one end", f"the job ended more than once: {states}")]
    return []


def _kept_end(
    story: Story, job: Job, told: set[str], perhaps: set[str], wrong: list[Violation]
) -> tuple[str, list[Violation]]:
    state = job.state.value
    if state not in TERMINAL_STATES:
        if told:
            wrong.append(_otherwise(story, told, state))
        return "unfinished", wrong
    if told and state not in told | perhaps:
        wrong.append(_otherwise(story, told, state))
    elif state == "completed" and not told and state not in perhaps:
        wrong += _completed_by_nobody(story)
    return state, wrong


def _otherwise(story: Story, told: set[str], state: str) -> Violation:
    ended = " and ".join(sorted(told))
    return broken(story, "one end", f"the job ended as {ended}; in the store it is {state}")


def _completed_by_nobody(story: Story) -> list[Violation]:
    """A finding for a completed job without a settlement: every worker records its settle calls."""
    if any(story.accepted("complete")):
        return []
    said = [a for a in story.acts if a.asked.state == "completed" and not _is_over(story, a)]
    if any(a.perhaps for a in said) or not (story.leases or story.runs or story.acts):
        return []  # or its worker was not recorded
    if said:
        return [broken(story, "fencing", f"a {said[-1].answer} outcome took effect: the job is completed")]
    return [broken(story, "fencing", "the job is completed, and no lease holder settled it so")]


def _presumed(story: Story, case: Case) -> str | None:
    """The end of a job whose end was not acknowledged; None if it has none.

    Either its worker was killed before the answer, and the job is past its retention; or the job has expired.
    With a wrong clock, and of a store that does not tell, the retention counts as past.
    """
    past = case.clock_skewed or not case.followed
    for act in reversed(story.acts):
        over = past or act.asked.keep == 0 or case.now >= act.asked.at + act.asked.keep
        if act.terminal and act.perhaps and over and not _is_over(story, act):
            return act.asked.state
    if not all(op.certain for op in story.accepted("complete")):
        return State.COMPLETED.value
    node = case.nodes.get(story.ref) if case.is_last(story) else None
    if node is not None and node.state.value in TERMINAL_STATES:
        return node.state.value  # its flow has counted its end
    expires = story.offer.expires if story.offer else None
    return "cancelled" if expires is not None and expires <= case.now else None


def _was_left_out(story: Story, batch: Story, case: Case) -> bool:
    """Whether the store lost the batch with this member, and formed it again without it."""
    having = [lease for lease in batch.leases if story.ref.id in lease.members]
    if len(having) == len(batch.leases) or not all(case.forgiven(*batch.call_of(one)) for one in having):
        return False
    return any(not case.forgiven(*batch.call_of(one)) for one in batch.leases if one not in having)


def _end_of_member(
    story: Story, batches: Sequence[Story], case: Case, job: Job | None
) -> tuple[str, list[Violation]]:
    """How a collected job ended: as its batch did."""
    fates = [end_of(batch, case)[0] for batch in batches]
    if job is None:
        if _deleted(story, case) or "deleted" in fates or case.is_purged(story):
            return "deleted", []
        ends = [fate for fate in fates if fate in TERMINAL_STATES]
        if ends:
            return ends[-1], []
        return _gone(story, case, [])
    state = job.state.value
    if state not in TERMINAL_STATES:
        ended = sorted(set(fates) & TERMINAL_STATES)
        if ended and job.batch in {batch.ref.id for batch in batches}:
            says = f"its batch ended as {' and '.join(ended)}; in the store the job is {state}"
            return "unfinished", [broken(story, "batches", says)]
        return "unfinished", []
    if state not in fates and "unfinished" not in fates and not (set(fates) & {"lost", "forgiven"}):
        says = f"its batch ended as {' and '.join(fates)}; in the store the job is {state}"
        return state, [broken(story, "batches", says)]
    return state, []


# ── acts of an operator ──────────────────────────────────────────────────────────────────────────


#: The operations that remove a job from its queue, and the states of jobs that they remove. A collecting job
#: may be in a batch, and then it stays.
_REMOVES = {"delete": "deleted", "move": "moved"}
_REMOVED = {state.value for state in (*QUEUED, *TERMINAL, State.SUSPENDED)} - {State.COLLECTING.value}


def acts(case: Case) -> Iterator[Violation]:
    """Check that a deleted or moved job is gone, and that an edited job has its new arguments.

    What becomes of jobs that were retried, rescheduled, cancelled, discarded or completed is checked by the
    rules about ends, attempts and times; of copies, and of jobs in their new queue, as of any other job.
    """
    for story in case.history.stories:
        for op in story.operations:
            certain = op.answer in _REMOVED and not case.forgiven(*op.call)
            if op.asked.verb in _REMOVES and certain and story.offers < 2:
                yield from _came_back(story, op, case)
        yield from _edited(story, case)


def _came_back(story: Story, op: OperatorAction, case: Case) -> Iterator[Violation]:
    did = _REMOVES[op.asked.verb]
    if case.job(story) is not None:
        yield broken(story, "acts", f"the job was {did} (it was {op.answer}), and is in the store")
    if any(lease.asked > op.answered and not case.forgiven(*story.call_of(lease)) for lease in story.leases):
        yield broken(story, "acts", f"the job was leased after it was {did} (it was {op.answer})")


def _edited(story: Story, case: Case) -> Iterator[Violation]:
    """Check that a job has the arguments of its last edit, unless another one may have been applied."""
    edits, job = list(story.accepted("edit")), case.job(story)
    if job is None or not edits or any(case.forgiven(*op.call) or not op.certain for op in edits):
        return
    if arguments_text(job.spec.payload) != edits[-1].asked.value:
        yield broken(story, "acts", f"the job was edited, and its arguments are not {edits[-1].asked.value}")


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


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
