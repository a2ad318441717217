"""Which queues an act on a job reaches beyond its own, through its flow and through jobs that it waits for.

An operator with rights on some queues may not change jobs of others by an act on one that is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from penstock.core.flow import FlowInfo, FlowPolicy
from penstock.core.job import Job, Ref, State
from penstock.inspector.job_acts import Change, JobAct, JobActs
from penstock.inspector.step_views import open_gathers
from penstock.stores.contract import FLOW_STEP, JobFilter, Store

#: The acts that change other jobs of a flow, too.
_SPREADING = (JobAct.RETRY, JobAct.CANCEL, JobAct.DELETE, JobAct.DISCARD, JobAct.COMPLETE)
_WHY = "acts on it change jobs of its flow in queues on which you have no right"


async def apply_within(
    store: Store,
    acts: JobActs,
    act: JobAct,
    refs: Sequence[Ref],
    within: Sequence[str] | None,
    jobs: Sequence[Job] | None = None,
) -> list[Change]:
    """Do an act to jobs; refuse it to those that change others beyond these queues. None: all queues.

    `jobs`: the jobs, if they were just read.
    """
    if within is None or act not in _SPREADING:
        return await acts.apply(act, refs, jobs)
    refused = await Reach(store, within).refused(refs)
    done = iter(await acts.apply(act, [ref for ref in refs if ref not in refused]))
    return [refused[ref] if ref in refused else next(done) for ref in refs]


class Reach:
    """What an operator may change who has the right on these queues. `*` in a name matches any characters."""

    def __init__(self, store: Store, within: Sequence[str]) -> None:
        self._store = store
        self._within = within
        self._flows: dict[Ref, bool] = {}

    async def refused(self, refs: Sequence[Ref]) -> dict[Ref, Change]:
        """The jobs on which an act would change others beyond these queues, and the refusal of each."""
        found = [job for job in await self._store.get(refs) if job is not None]
        return {
            job.ref: Change(job.queue, job.id, "refused", _WHY)
            for job in found
            if await self._job_leaves(job)
        }

    async def flow_leaves(self, ref: Ref) -> bool:
        """Whether the flow has jobs beyond these queues, or jobs that wait for such jobs."""
        (info,) = await self._store.get_flows([ref])
        if not self._may(ref.queue):
            return True
        if info is None:
            return False
        for first in range(0, info.total, FLOW_STEP):
            nodes = await self._store.flow_nodes(ref, range(first, first + FLOW_STEP), results=False)
            if any(node and node.job and not self._may(node.job.queue) for node in nodes):
                return True
        filter, after = JobFilter(flow=ref, states=(State.SUSPENDED,)), None
        while True:
            page = await self._store.search(filter, after=after, limit=500)
            for job in page.jobs:
                if await self._waits_beyond(job):
                    return True
            after = page.next
            if after is None:
                return False

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _may(self, queue: str) -> bool:
        return any(fnmatchcase(queue, pattern) for pattern in self._within)

    async def _job_leaves(self, job: Job) -> bool:
        member = job.spec.flow
        if member is not None and await self._members_leave(Ref(member.queue, member.id)):
            return True
        return await self._waits_beyond(job)

    async def _members_leave(self, flow: Ref) -> bool:
        """Whether the end of one job, or its retry, changes others of this flow beyond the queues."""
        if flow not in self._flows:
            (info,) = await self._store.get_flows([flow])
            self._flows[flow] = _is_stopped_by_one(info) and await self.flow_leaves(flow)
        return self._flows[flow]

    async def _waits_beyond(self, job: Job) -> bool:
        """Whether the job waits for jobs beyond the queues, which are cancelled and brought back with it."""
        seen, waiting = {job.ref}, [job]
        while waiting:
            for gathered in await open_gathers(self._store, waiting.pop()):
                new = [ref for ref in gathered if ref not in seen]
                if not all(self._may(ref.queue) for ref in new):
                    return True
                seen.update(new)
                found = await self._store.get(new)
                waiting += [one for one in found if one is not None and one.state is State.SUSPENDED]
        return False


def _is_stopped_by_one(info: FlowInfo | None) -> bool:
    """Whether a job that fails cancels the others: with other policies it changes no stored job."""
    return info is not None and info.spec.policy is FlowPolicy.STOP
