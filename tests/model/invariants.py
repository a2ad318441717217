"""The invariants of the lease protocol, one named predicate each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.core.job import TERMINAL, NewJob, State
from penstock.core.lifecycle import LEGAL
from tests.model.protocol import Act, Told, World

__all__ = ["EACH_STEP", "END", "legal_steps", "promises"]


def i1_what_was_acknowledged_is_there_or_has_ended(world: World) -> bool:
    return all(
        job.state is not None or job.ends == 1
        for job, told in zip(world.jobs, world.told, strict=True)
        if told == Told.STORED
    )


def i1_it_ends_once(world: World) -> bool:
    return all(
        job.ends == (job.state in TERMINAL) if job.state is not None else job.ends <= 1 for job in world.jobs
    )


def i3_one_process_at_a_time_holds_the_lease(world: World) -> bool:
    for j, job in enumerate(world.jobs):
        if job.token:
            holders = sum(
                any(hold is not None and hold.token == job.token for hold in (p.holds[j], p.judging[j]))
                for p in world.processes
                if p.alive
            )
            if holders > 1:
                return False
    return True


def i4_nothing_is_handed_out_before_its_time(world: World) -> bool:
    return all(job.due for job in world.jobs if job.state in (State.AVAILABLE, State.RUNNING))


def i5_what_has_begun_is_charged(world: World) -> bool:
    """Each start of a function but those that asked for another one; whatever became of its process."""
    return all(job.begun <= job.attempt for job in world.jobs)


def i3_only_who_holds_a_running_job_changes_it(before: World, act: Act, after: World) -> bool:
    """By the token, or by a lease that is over; cancelling only asks."""
    if before.jobs is after.jobs:
        return True
    for j, (was, job) in enumerate(zip(before.jobs, after.jobs, strict=True)):
        if was is job or was.state is not State.RUNNING or was == job:
            continue
        same = was._replace(asked=job.asked, run_out=job.run_out, begun=job.begun, owner=job.owner)
        if same == job and job.run_out >= was.run_out:
            continue
        if act.verb == "reclaims":
            if not was.run_out and was.owner >= 0 and before.processes[was.owner].alive:
                return False
        elif act.job != j or act.token != was.token:
            return False
    return True


def every_step_is_legal(before: World, act: Act, after: World) -> bool:
    return before.jobs is after.jobs or all(step in LEGAL for step in legal_steps(before, act, after))


def legal_steps(before: World, act: Act, after: World) -> Iterator[tuple[State | None, State | None]]:
    """The steps that jobs take here, as `LEGAL` names them."""
    for j, (was, job) in enumerate(zip(before.jobs, after.jobs, strict=True)):
        if was.state is not job.state or (act.job == j and act.verb in _TO_THE_SAME):
            yield was.state, job.state


#: Steps also where the state is the one that it was.
_TO_THE_SAME = {"reclaims", "puts off", "retries"}


def each_job_is_over(world: World) -> bool:
    return all(job.state is None or job.state in TERMINAL for job in world.jobs)


def promises(*specs: NewJob) -> dict[str, Callable[[World], bool]]:
    """Those of every state; some depend on what was asked for with the jobs."""

    def i5_never_more_attempts_than_allowed(world: World) -> bool:
        return all(job.attempt <= spec.max_attempts for job, spec in zip(world.jobs, specs, strict=True))

    def at_most_once_never_starts_twice(world: World) -> bool:
        return all(job.begun <= 1 for job, spec in zip(world.jobs, specs, strict=True) if spec.at_most_once)

    return _named(
        i1_what_was_acknowledged_is_there_or_has_ended,
        i1_it_ends_once,
        i3_one_process_at_a_time_holds_the_lease,
        i4_nothing_is_handed_out_before_its_time,
        i5_what_has_begun_is_charged,
        i5_never_more_attempts_than_allowed,
        at_most_once_never_starts_twice,
    )


def _named(*predicates: Callable[..., bool]) -> dict[str, Callable[..., bool]]:
    return {predicate.__name__: predicate for predicate in predicates}


EACH_STEP: Mapping[str, Callable[[World, Any, World], bool]] = _named(
    i3_only_who_holds_a_running_job_changes_it, every_step_is_legal
)
END = ("i1_an_end_can_be_reached_from_everywhere", each_job_is_over)
