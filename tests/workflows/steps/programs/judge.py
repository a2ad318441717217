"""Compares what a program has done by a worker with what it does in a direct run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.core.job import State
from tests.workflows.steps.programs.direct import Direct, played_directly
from tests.workflows.steps.programs.fleet import Trial
from tests.workflows.steps.programs.source import text_of_program

__all__ = ["faults_of", "told"]

#: Ends of a job, and the state of the direct run.
_ENDS = {
    State.COMPLETED: "completed",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
    State.PARKED: "parked",
}


async def faults_of(trial: Trial, *, parks: str = "", dropped: frozenset[str] = frozenset()) -> list[str]:
    """What is wrong with this trial. `parks`: why its later release must park it."""
    if trial.stuck:
        return ["does not end", *trial.world.wrong]
    if parks and (trial.remembered or trial.later is not None):
        return list(_parked(trial, parks)) + trial.world.wrong
    direct = await played_directly(trial.program, trial.world)
    return [
        *trial.world.wrong,
        *_outcome(trial, direct),
        *_answers(trial, direct, dropped),
        *_effects(trial, direct, dropped),
        *_undos(trial, direct),
    ]


def _parked(trial: Trial, why: str) -> Iterator[str]:
    job = trial.job
    if trial.later is not None:
        yield "the later release never took over"
    elif job is None or job.state is not State.PARKED:
        yield f"is not parked, although it should be: {job and job.state.value}"
    elif why not in (job.reason or ""):
        yield f"is parked for another reason: {job.reason}"


def _outcome(trial: Trial, direct: Direct) -> Iterator[str]:
    job = trial.job
    if job is None:
        yield "the job is gone"
        return
    state = _ENDS.get(job.state, job.state.value)
    if state != direct.state:
        last = f": {job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else ""
        why = f"{job.reason or ''}{last}"
        yield f"is {state}, not {direct.state} ({direct.kind}): {why[:300]}"
    elif state == "dead" and not trial.faults and direct.kind not in {one.kind for one in job.errors}:
        yield f"ended by {', '.join(one.kind for one in job.errors)}, not by {direct.kind}"


def _answers(trial: Trial, direct: Direct, dropped: frozenset[str]) -> Iterator[str]:
    seen, expected = trial.world.seen, direct.world.seen
    for place, value in expected.items():
        if place in seen and seen[place] != value:
            yield f"{place} answered {seen[place]!r}, not {value!r}"
        elif place not in seen:
            yield f"{place} has never answered {value!r}"
    for place in seen.keys() - expected.keys() - dropped:
        yield f"{place} answered {seen[place]!r}, although the program does not come there"


def _effects(trial: Trial, direct: Direct, dropped: frozenset[str]) -> Iterator[str]:
    world = trial.world
    lost = sum(one.startswith("lost") for one in trial.struck)
    for place in {*world.calls, *direct.world.calls} - dropped:
        most = direct.world.calls[place] + world.repeated[place] + world.excused[place]
        if world.hung[place]:  # an attempt that an outage has ended may have cut it off
            most += lost
        if world.calls[place] > most:
            yield f"the function of {place} was called {world.calls[place]} times, not {most}"
        if world.excused[place] > len(trial.faults):
            yield f"the function of {place} was lost {world.excused[place]} times"
        if world.calls[place] < direct.world.calls[place] and place in trial.stored:
            yield f"the function of {place} was called {world.calls[place]} times only, not {most}"


def _undos(trial: Trial, direct: Direct) -> Iterator[str]:
    world = trial.world
    if direct.state == "completed":
        if world.undone:
            yield f"{world.undone} were undone, although the program completes"
        return
    once = list(dict.fromkeys(world.undone))
    kills = sum(one.startswith("kill") for one in trial.struck)
    if len(world.undone) > len(once) + kills:
        yield f"undone more than once: {world.undone}"
    wanted = set(direct.done)
    order = [place for place in reversed(trial.stored) if place in wanted]
    if trial.struck_last:  # what its last run did not undo stays
        order = order[: len(once)]
        wanted &= set(once)
    # a step whose storing was cut off may be stored, and has no known place
    if [place for place in once if place in trial.stored or place not in wanted] != order:
        yield f"undone: {once}, not {order}"
    elif set(once) != wanted:
        yield f"undone: {once}, not {sorted(wanted)}"


def told(trial: Trial, wrong: list[str], extra: Any = "") -> str:
    """What is wrong, and the program."""
    lines = [f"{trial.id} with {', '.join(map(str, trial.faults)) or 'no fault'} {extra}".rstrip()]
    lines += [f"  {one}" for one in wrong]
    lines += [f"  struck: {trial.struck}", f"  calls: {trial.calls}", f"  seen: {trial.world.seen}"]
    return "\n".join([*lines, text_of_program(trial.program)])
