"""What flows are made of: calls of tasks, chains, groups, chords, and graphs of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from penstock.client.flows.build import Builder, Link, Source, link_of
from penstock.client.flows.flow_handle import FlowHandle
from penstock.client.flows.submit import Submission, asubmit, submit
from penstock.client.job_call import JobCall
from penstock.core.errors import ConfigError
from penstock.core.flow import FlowPolicy, When
from penstock.core.formats import Duration

R = TypeVar("R")
#: How a part is laid out: asks for its own parts, each after these nodes; is sent the node of each result.
Laying = Generator[tuple[Any, Sequence[Source]], int, int]
C = TypeVar("C", bound="Canvas[Any]")


class Canvas(Generic[R]):
    """Jobs that depend on each other, not enqueued yet."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[str, Link]] = []

    def on_success(self: C, call: Any) -> C:
        """Run this call when all has completed; it is passed the result."""
        return self._call("success", call)

    def on_error(self: C, call: Any) -> C:
        """Run this call, once, when a job has failed for good."""
        return self._call("error", call)

    def on_complete(self: C, call: Any) -> C:
        """Run this call when all jobs have ended, in any way."""
        return self._call("complete", call)

    def enqueue(
        self,
        *,
        id: str | None = None,
        name: str = "",
        policy: FlowPolicy | str = FlowPolicy.STOP,
        retention: Duration | None = None,
        keep_nodes: Duration | None = None,
    ) -> FlowHandle[R]:
        """Store the whole flow; nothing runs before it is there. Returns its handle.

        - `policy`: what happens to the others if a job fails: `stop`, `finish` or `ignore`.
        - `retention`: how long the completed flow is kept, with its result (default 10 minutes).
        - `keep_nodes`: how long its jobs and their results are kept, so that it can run again from any node
          (default: a result is removed after its use).

        Raises ConfigError for jobs that do not fit together; nothing is stored then. Raises JobExists if a
        flow with this id exists.
        """
        return submit(self._submission(id, name, policy, retention, keep_nodes))

    async def aenqueue(
        self,
        *,
        id: str | None = None,
        name: str = "",
        policy: FlowPolicy | str = FlowPolicy.STOP,
        retention: Duration | None = None,
        keep_nodes: Duration | None = None,
    ) -> FlowHandle[R]:
        """Like `enqueue`, without blocking the event loop."""
        return await asubmit(self._submission(id, name, policy, retention, keep_nodes))

    def lay(self, builder: Builder, sources: Sequence[Source]) -> Laying:
        """Add the nodes after these; returns the node that stands for the result."""
        first = len(builder.nodes)
        value = yield from self._lay(builder, sources)
        last = len(builder.nodes)
        for kind, link in self._callbacks:
            if kind == "success":
                builder.job(link, [Source(value)])
            elif kind == "error":
                builder.job(link, [Source(value)], When.FAILURE)
            else:
                jobs = [n for n in range(first, last) if builder.nodes[n].call is not None]
                end = builder.join((), [*jobs, value], When.END)
                builder.job(link, [Source(end)], When.END)
        return value

    def _lay(self, builder: Builder, sources: Sequence[Source]) -> Laying:
        raise NotImplementedError

    def _call(self: C, kind: str, call: Any) -> C:
        link = link_of(call)
        if link is None:
            raise ConfigError(f"on_{kind}() takes one call of a task, as task.job(...), not {call!r:.100}")
        self._callbacks.append((kind, link))
        return self

    def _submission(
        self,
        id: str | None,
        name: str,
        policy: FlowPolicy | str,
        retention: Duration | None,
        keep_nodes: Duration | None,
    ) -> Submission[R]:
        builder = Builder()
        builder.result = _lay_out(builder, self)
        return Submission(builder, id, name, policy, retention, keep_nodes)


class Chain(Canvas[R]):
    """Jobs one after the other; each is passed the result of the one before."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self._parts = _flat(parts)
        if not self._parts:
            raise ConfigError("chain() of nothing: give it at least one job")

    def _lay(self, builder: Builder, sources: Sequence[Source]) -> Laying:
        value = 0
        for part in self._parts:
            value = yield part, sources
            sources = [Source(value)]
        return value


class Group(Canvas[list[R]]):
    """Jobs side by side; the result is the list of their results, in order."""

    #: The client of an app, for a group that may have no member.
    _client: Any = None

    def __init__(self, *members: Any) -> None:
        super().__init__()
        self._members = _flat(members)

    @classmethod
    def of(cls, calls: Iterable[JobCall[R]], client: Any) -> Group[R]:
        """A group of these calls of an app, perhaps of none."""
        made: Group[R] = Group(list(calls))
        made._client = client
        return made

    def __len__(self) -> int:
        return len(self._members)

    def _lay(self, builder: Builder, sources: Sequence[Source]) -> Laying:
        builder.client = builder.client or self._client
        values: list[int] = []
        for member in self._members:
            values.append((yield member, sources))  # noqa: PERF401 (a comprehension cannot yield)
        return builder.join(values, () if values else [source.node for source in sources])


class Chord(Canvas[R]):
    """A group, and a job that is passed the list of the group's results."""

    def __init__(self, members: Iterable[Any] | Group[Any], then: Any) -> None:
        super().__init__()
        self._group = members if isinstance(members, Group) else Group(*members)
        self._then = then

    def _lay(self, builder: Builder, sources: Sequence[Source]) -> Laying:
        value = yield self._group, sources
        return (yield self._then, [Source(value)])


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class NodeRef:
    """A node of a `Flow`, for `after=`."""

    part: Any
    name: str
    after: tuple[tuple[NodeRef | str, str | None], ...]


class Flow(Canvas[Any]):
    """A graph of jobs. The result is that of the last node, or the list of those of the last nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._refs: list[NodeRef] = []
        self._names: dict[str, NodeRef] = {}

    def add(
        self,
        part: Any,
        *,
        after: NodeRef | str | Sequence[NodeRef | str] | Mapping[str, NodeRef | str] = (),
        name: str = "",
    ) -> NodeRef:
        """Add a job, chain, group or flow after these nodes, which are given as such or by their names.

        The results of `after` are passed on in order, or with `{"parameter": node}` by name.
        """
        if name and name in self._names:
            raise ConfigError(f"the flow has two nodes of the name {name!r}")
        ref = NodeRef(part, name, _after(after))
        self._refs.append(ref)
        if name:
            self._names[name] = ref
        return ref

    def _lay(self, builder: Builder, sources: Sequence[Source]) -> Laying:
        if not self._refs:
            raise ConfigError("a flow of no nodes: add a job first")
        values: dict[NodeRef, int] = {}
        for ref in self._in_order():
            before = [Source(values[self._resolved(one)], name) for one, name in ref.after]
            values[ref] = yield ref.part, before or sources
        used = {self._resolved(one) for ref in self._refs for one, _ in ref.after}
        last = [values[ref] for ref in self._refs if ref not in used]
        return last[0] if len(last) == 1 else builder.join(last)

    def _resolved(self, one: NodeRef | str) -> NodeRef:
        ref = self._names.get(one) if isinstance(one, str) else one
        if ref is None or ref not in self._refs_set():
            known = f"; known are {', '.join(self._names)}" if self._names else ""
            raise ConfigError(f"after={one!r:.100} is no node of this flow{known}")
        return ref

    def _refs_set(self) -> set[NodeRef]:
        return set(self._refs)

    def _in_order(self) -> list[NodeRef]:
        """The nodes, each after those that it follows."""
        done: dict[NodeRef, bool] = {}  # False: in progress
        order: list[NodeRef] = []
        for root in self._refs:
            path: list[tuple[NodeRef, Iterator[NodeRef]]] = []
            step: NodeRef | None = root
            while step is not None or path:
                if step is not None and step not in done:
                    done[step] = False
                    path.append((step, iter([self._resolved(one) for one, _ in step.after])))
                elif step is not None and not done[step]:
                    names = ", ".join(ref.name or repr(ref.part)[:40] for ref, _ in path)
                    raise ConfigError(f"the nodes of the flow depend on each other in a circle: {names}")
                step = next(path[-1][1], None) if path else None
                if step is None and path:
                    ref, _ = path.pop()
                    done[ref] = True
                    order.append(ref)
        return order


def immutable(part: Any) -> Link:
    """The same call, without the result of the node before it."""
    return dataclasses.replace(_link(part, "immutable"), takes=False)


def into(name: str, part: Any) -> Link:
    """The same call, with the result of the node before it in the parameter `name`."""
    return dataclasses.replace(_link(part, "into"), name=name)


def chunks_of(items: Iterable[Any], n: int) -> Iterator[list[Any]]:
    """Lists of `n` items; the last may be shorter."""
    if n < 1:
        raise ConfigError(f"chunks of {n} items: use 1 or more")
    rest = iter(items)
    while chunk := list(islice(rest, n)):
        yield chunk


def _link(part: Any, what: str) -> Link:
    link = link_of(part)
    if link is None:
        raise ConfigError(f"{what}() takes a call of a task, as task.job(...), not {part!r:.100}")
    return link


def _lay_out(builder: Builder, whole: Canvas[Any]) -> int:
    """Lay out a canvas with all its parts, without recursion: parts nest to any depth."""
    open = [whole.lay(builder, ())]
    value: int | None = None  # of the part that was asked for last
    while True:
        try:
            part, sources = next(open[-1]) if value is None else open[-1].send(value)
        except StopIteration as end:
            value = int(end.value)
            open.pop()
            if not open:
                return value
            continue
        value = None
        if isinstance(part, Canvas):
            open.append(part.lay(builder, sources))
        elif (link := link_of(part)) is not None:
            value = builder.job(link, sources)
        else:
            raise ConfigError(_no_part(part))


def _no_part(part: object) -> str:
    return f"{part!r:.100} is no part of a flow: give task.job(...), a task, chain(), group() or chord()"


def _flat(parts: tuple[Any, ...]) -> list[Any]:
    """The parts; one iterable stands for its elements."""
    if len(parts) == 1 and not isinstance(parts[0], Canvas) and link_of(parts[0]) is None:
        if not isinstance(parts[0], Iterable):
            raise ConfigError(_no_part(parts[0]))
        return list(parts[0])
    return list(parts)


def _after(
    after: NodeRef | str | Sequence[NodeRef | str] | Mapping[str, NodeRef | str],
) -> tuple[tuple[NodeRef | str, str | None], ...]:
    if isinstance(after, (NodeRef, str)):
        return ((after, None),)
    if isinstance(after, Mapping):
        return tuple((one, name) for name, one in after.items())
    return tuple((one, None) for one in after)
