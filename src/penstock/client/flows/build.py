"""Lay out the nodes of a flow: number them, connect them, and check that results fit parameters."""

from __future__ import annotations

import dataclasses
import types
from collections import Counter
from collections.abc import Sequence
from inspect import Parameter
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import replace

from penstock.client.job_call import JobCall
from penstock.codec import ANY_RESULT, ResultCodec
from penstock.core.errors import ConfigError
from penstock.core.flow import NewFlow, NewNode, When
from penstock.core.ids import mint_many
from penstock.core.job import NewJob
from penstock.core.relations import FlowMember, Input

_given_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A call in a flow. `takes`: whether results are passed to it; `name`: into this parameter."""

    call: JobCall[Any]
    takes: bool = True
    name: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A predecessor, and the parameter that takes its value; None: the first that is free."""

    node: int
    name: str | None = None


def link_of(part: Any) -> Link | None:
    """The link that a call, or a task or its `using(...)`, stands for; None for anything else."""
    if isinstance(part, Link):
        return part
    if isinstance(part, JobCall):
        return Link(part)
    make = getattr(part, "partial", None)
    call = make() if callable(make) and not isinstance(part, type) else None
    return Link(call) if isinstance(call, JobCall) else None


@dataclasses.dataclass(slots=True)
class _Node:
    call: JobCall[Any] | None = None
    payload_inputs: tuple[Input, ...] = ()
    inputs: tuple[int, ...] = ()
    next: list[int] = dataclasses.field(default_factory=list[int])
    waits: int = 0
    when: When = When.SUCCESS
    type: Any = Any


class Builder:
    """The nodes of one flow, predecessors before their successors."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.result = 0
        self.client: Any = None

    def job(self, link: Link, sources: Sequence[Source], when: When = When.SUCCESS) -> int:
        """Add a call after these nodes; returns its number, which stands for its result."""
        template = link.call.template
        self._check(link.call)
        passes = sources if link.takes and when is When.SUCCESS else ()
        node = _Node(link.call, when=when, type=_type_of(template.codec))
        node.payload_inputs = self._inputs(link, passes)
        return self._append(node, [source.node for source in sources])

    def join(self, values: Sequence[int], after: Sequence[int] = (), when: When = When.SUCCESS) -> int:
        """Add a join, whose value is the list of these values; `after`: nodes that it waits for besides."""
        types = tuple(self.nodes[value].type for value in values[:100])
        node = _Node(inputs=tuple(values), when=when, type=ListOf(types))
        return self._append(node, [*values, *after])

    def codecs(self) -> dict[int, ResultCodec]:
        """The codec of each result."""
        return {n: node.call.template.codec for n, node in enumerate(self.nodes) if node.call is not None}

    def new_nodes(self, flow: NewFlow, keep_nodes: int | None = None) -> list[NewNode]:
        """The nodes, for the store.

        `keep_nodes`: how long (ms) their jobs and results are kept; None: results go after their use.
        """
        taken = [tuple(dict.fromkeys(one.node for one in n.payload_inputs)) or n.inputs for n in self.nodes]
        uses = Counter(one for inputs in taken for one in inputs)
        ids = iter(mint_many(len(self.nodes)))
        made: list[NewNode] = []
        for index, node in enumerate(self.nodes):
            job = None
            if node.call is not None:
                job = self.client.rewritten(node.call.template.node(next(ids), node.call.payload))
                kept = max(job.retention, keep_nodes or 0)
                if job.unique is not None or job.batch_terms is not None:
                    raise ConfigError(
                        f"{job.task}: enqueue middleware makes the job unique, or one of a batch, but it is "
                        "a node of a flow, which must be enqueued and runs alone; nothing was stored"
                    )
                member = FlowMember(flow.queue, flow.id, index, node.payload_inputs)
                job = replace(job, flow=member, retention=kept)
            used = -1 if index == flow.result or keep_nodes is not None else uses[index]
            made.append(NewNode(index, job, tuple(node.next), node.waits, node.when, taken[index], used))
        return made

    def home(self) -> str:
        """The queue of the first job."""
        for node in self.nodes:
            if node.call is not None:
                return node.call.template.queue
        return "default"

    # ── private ──

    def _append(self, node: _Node, after: Sequence[int]) -> int:
        index = len(self.nodes)
        before = dict.fromkeys(after)  # a node that is named twice counts once
        for one in before:
            self.nodes[one].next.append(index)
        node.waits = len(before)
        self.nodes.append(node)
        return index

    def _check(self, call: JobCall[Any]) -> None:
        template = call.template
        if self.client is None:
            self.client = template.client
        template.refuse_unless(template.client is self.client)
        why = None
        if template.has_key:
            why = "is unique: a node of a flow must be enqueued; use unique=None"
        elif template.batches:
            why = "collects batches: a node of a flow runs alone"
        elif call.given:
            why = "has an id of the caller's choice: nodes get their own; give the flow an id"
        if why is not None:
            raise ConfigError(f"{template.task} {why}; nothing was stored")

    def _inputs(self, link: Link, sources: Sequence[Source]) -> tuple[Input, ...]:
        template = link.call.template
        if template.args is None:
            return ()
        parameters = template.args.signature.parameters
        given = set(_given_names(link.call.payload))
        inputs: list[Input] = []
        for n, source in enumerate(sources):
            name = source.name or (link.name if n == 0 else None)
            parameter = self._parameter(template.task, parameters, given, name, self.nodes[source.node].type)
            if parameter is None:
                continue
            self._check_type(template.task, parameter, source.node)
            if template.key_functions is not None:
                template.key_functions.refuse_results([parameter.name])
            given.add(parameter.name)
            inputs.append(Input(source.node, parameter.name, parameter.kind is Parameter.VAR_POSITIONAL))
        missing = [
            name
            for name, one in parameters.items()
            if one.default is Parameter.empty and one.kind not in _VARIABLE and name not in given
        ]
        if missing:
            raise ConfigError(f"{template.task}: the argument {missing[0]!r} is missing; nothing was stored")
        return tuple(inputs)

    def _parameter(
        self, task: str, parameters: Any, given: set[str], name: str | None, result: Any
    ) -> Parameter | None:
        """The parameter that takes a result; None if the result is nothing, and no parameter is free."""
        if name is not None:
            found: Parameter | None = parameters.get(name)
            if found is None or found.kind in _VARIABLE:
                raise ConfigError(f"{task} has no parameter {name!r} that can take a result")
            if name in given:
                raise ConfigError(f"{task}: the argument {name!r} is given twice")
            return found
        for one in parameters.values():
            if one.kind is Parameter.VAR_POSITIONAL:
                return one  # type: ignore[no-any-return]
            if one.kind is not Parameter.VAR_KEYWORD and one.name not in given:
                return one  # type: ignore[no-any-return]
        if result is None or result is type(None):
            return None
        raise ConfigError(
            f"{task} has no parameter left for the result of the node before it: use immutable(...) if it "
            "takes none; nothing was stored"
        )

    def _check_type(self, task: str, parameter: Parameter, node: int) -> None:
        annotation = Any if parameter.annotation is Parameter.empty else parameter.annotation
        if not fits(self.nodes[node].type, annotation):
            call = self.nodes[node].call
            what = "a list of results" if call is None else f"the result of {call.template.task}"
            raise ConfigError(
                f"{task}: {what} does not fit the parameter {parameter.name!r}, which is annotated "
                f"{parameter.annotation!r}; nothing was stored"
            )


def first_jobs(nodes: Sequence[NewNode]) -> list[NewJob]:
    """The jobs that start with the flow: those that follow no other job."""
    waits = [node.waits for node in nodes]
    found: list[NewJob] = []
    for node in nodes:  # predecessors come before their successors
        if waits[node.index]:
            continue
        if node.job is not None:
            found.append(node.job)
            continue
        for after in node.next:  # a join without members ends at once
            waits[after] -= nodes[after].when is not When.FAILURE
    return found


def _type_of(codec: ResultCodec) -> Any:
    if codec is ANY_RESULT:
        return Any
    try:
        return codec.annotation
    except ConfigError:
        return Any


# ── whether results fit parameters ───────────────────────────────────────────────────────────────

_LISTS = (list, tuple, set, frozenset)
_NUMBERS = {bool: (int, float, complex), int: (float, complex), float: (complex,)}


class ListOf:
    """The type of a join: the list of the values of its inputs."""

    def __init__(self, elements: tuple[Any, ...]) -> None:
        self.elements = elements


def fits(result: Any, parameter: Any) -> bool:
    """False if no value of the type `result` fits the type `parameter`; True if some do, or if unknown."""
    parameter = _bare(parameter)
    if parameter is Any or parameter is object or isinstance(parameter, TypeVar):
        return True
    if _is_union(parameter):
        return any(fits(result, one) for one in get_args(parameter))
    if isinstance(result, ListOf):
        return _list_fits(result, parameter)
    result = _bare(result)
    if result is Any or result is object or isinstance(result, TypeVar):
        return True
    if _is_union(result):
        return any(fits(one, parameter) for one in get_args(result))
    return _classes_fit(result, parameter)


def _classes_fit(result: Any, parameter: Any) -> bool:
    of, into = get_origin(result) or result, get_origin(parameter) or parameter
    if result is None or parameter is None or of is type(None) or into is type(None):
        return (result is None or of is type(None)) and (parameter is None or into is type(None))
    if not isinstance(of, type) or not isinstance(into, type):
        return True  # a Literal, say: the worker will check the value
    if of in _LISTS and into in _LISTS:
        mine, wanted = get_args(result), get_args(parameter)
        return not mine or not wanted or fits(mine[0], wanted[0])
    if into in _NUMBERS.get(of, ()):
        return True
    return _may_be(of, into)


def _may_be(of: type, into: type) -> bool:
    if issubclass(of, into) or issubclass(into, of):
        return True
    plain = (bool, int, float, str, bytes, list, tuple, set, frozenset, dict)
    return of not in plain or into not in plain  # structs and dicts, enums and texts look alike when stored


def _list_fits(result: ListOf, parameter: Any) -> bool:
    into = get_origin(parameter) or parameter
    if not isinstance(into, type):
        return True
    if into in (bool, int, float, str, bytes, dict, type(None)):
        return False
    wanted = get_args(parameter)
    if into in _LISTS and wanted and not (into is tuple and len(wanted) != 2):
        return all(fits(one, wanted[0]) for one in result.elements)
    return True


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)
