"""The graph of jobs that the running job is a node of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from penstock.client.flows.build import link_of
from penstock.core.errors import ConfigError
from penstock.core.flow import FlowInfo
from penstock.core.flow_member import FlowMember
from penstock.core.ids import mint
from penstock.core.job import NewJob, Ref
from penstock.stores.contract import FLOW_STEP, Store

__all__ = ["RunningFlow"]


class RunningFlow:
    """The flow that the running job is a node of. Raises ConfigError if it is of none."""

    def __init__(self, member: FlowMember | None) -> None:
        if member is None:
            raise ConfigError("current_flow().add(): the running job is not part of a chain, group or chord")
        self._member = member

    @property
    def id(self) -> str:
        return self._member.id

    @property
    def queue(self) -> str:
        return self._member.queue

    @property
    def node(self) -> int:
        """The number of the running job's node."""
        return self._member.node

    def add(self, *calls: Any, key: str) -> None:
        """Add members to the group of the running job: its body waits for them, and is passed their results.

        A repeated call with this key adds none. Raises ConfigError if the job is in no group.
        """
        store, jobs = self._jobs(calls)
        for join in self._joins(store.sync.flow_nodes(self._ref, [self.node])):
            (node,) = store.sync.flow_nodes(self._ref, [join])
            if node is not None and node.job is None:
                for part, name in self._parts(jobs, key):
                    self._check(store.sync.add_to_flow(self._ref, join, part, key=name))
                return
        self._check(None)

    async def aadd(self, *calls: Any, key: str) -> None:
        """Like `add`, without blocking the event loop."""
        store, jobs = self._jobs(calls)
        for join in self._joins(await store.flow_nodes(self._ref, [self.node])):
            (node,) = await store.flow_nodes(self._ref, [join])
            if node is not None and node.job is None:
                for part, name in self._parts(jobs, key):
                    self._check(await store.add_to_flow(self._ref, join, part, key=name))
                return
        self._check(None)

    @property
    def _ref(self) -> Ref:
        return Ref(self.queue, self.id)

    def _parts(self, jobs: list[NewJob], key: str) -> Iterator[tuple[list[NewJob], str]]:
        """The jobs in parts, each with its key. None is too late: the body waits for the running job, too."""
        for at in range(0, len(jobs), FLOW_STEP):
            yield jobs[at : at + FLOW_STEP], f"{self.node}/{key}/{at}"

    def _jobs(self, calls: tuple[Any, ...]) -> tuple[Store, list[NewJob]]:
        links = [link_of(call) for call in calls]
        if not links or None in links:
            raise ConfigError("current_flow().add() takes calls of tasks, as task.job(...)")
        made = [link.call for link in links if link is not None]
        client = made[0].template.client
        jobs = [client.rewritten(call.template.new(mint(), call.payload)) for call in made]
        place = FlowMember(self.queue, self.id, 0)  # the store sets the number
        return client.store, [replace(job, flow=place) for job in jobs]

    @staticmethod
    def _joins(nodes: list[Any]) -> tuple[int, ...]:
        (node,) = nodes
        return () if node is None else node.next

    @staticmethod
    def _check(info: FlowInfo | None) -> None:
        if info is None:
            raise ConfigError("the running job is not a member of a group whose body still waits")
