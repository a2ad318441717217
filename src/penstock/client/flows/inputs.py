"""Put the results that a node takes into the arguments of its job."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from penstock.client.flows.values import encoded, needed
from penstock.core.errors import Undecodable
from penstock.core.flow import FlowNode
from penstock.core.flow_member import FlowMember
from penstock.core.job import Job, Ref
from penstock.encryption import why_not_here
from penstock.stores.contract import Store

__all__ = ["InputUnreadable", "with_inputs"]

_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_write = msgspec.json.Encoder().encode


class InputUnreadable(Exception):
    """A result that a job takes is encrypted with a key that this process does not have; says which."""


async def with_inputs(store: Store, job: Job) -> Job:
    """The job with its complete arguments.

    Raises Undecodable if a result is gone, InputUnreadable if it cannot be decrypted here, or StoreError.
    """
    member = job.spec.flow
    if member is None or not member.inputs:
        return job
    ref = Ref(member.queue, member.id)
    reading = needed(one.node for one in member.inputs)
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send(await store.flow_nodes(ref, wanted))
    except StopIteration as end:
        nodes: dict[int, FlowNode] = end.value
    for node in nodes.values():
        why = None if node.result is None else why_not_here(node.result)
        if why is not None:
            raise InputUnreadable(f"the result of node {node.index} of its flow: {why}")
    return replace(job, spec=replace(job.spec, payload=_filled(job.spec.payload, member, nodes)))


def _filled(payload: bytes, member: FlowMember, nodes: dict[int, FlowNode]) -> bytes:
    try:
        arguments = _read(payload)
        for one in member.inputs:
            value = msgspec.Raw(encoded(one.node, nodes))
            if one.spread:
                rest = _read_list(arguments[one.name]) if one.name in arguments else []
                value = msgspec.Raw(_write([*rest, value]))
            arguments[one.name] = value
        return _write(arguments)
    except msgspec.DecodeError as error:
        raise Undecodable(f"the arguments of a node cannot be completed: {error}") from error
