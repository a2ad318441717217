"""The verbs of an encrypted store for flows: the jobs of nodes are encrypted, and the results of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.flow import FlowInfo, FlowNode, NewFlow, NewNode
from penstock.core.job import NewJob, Ref
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.facade import Operation

__all__ = ["AddToFlow", "PutFlow", "decrypted"]


class PutFlow:
    """Store nodes, with their jobs encrypted."""

    def __init__(
        self, inner: Operation[[NewFlow, Sequence[NewNode], bool], FlowInfo | None], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, flow: NewFlow, nodes: Sequence[NewNode], start: bool, /) -> FlowInfo | None:
        return await self._inner.run(flow, self._encrypted(nodes), start)

    def run_sync(self, flow: NewFlow, nodes: Sequence[NewNode], start: bool, /) -> FlowInfo | None:
        return self._inner.run_sync(flow, self._encrypted(nodes), start)

    def _encrypted(self, nodes: Sequence[NewNode]) -> list[NewNode]:
        return [
            node if node.job is None else replace(node, job=self._cipher.encrypt_jobs([node.job])[0])
            for node in nodes
        ]


class AddToFlow:
    """Add jobs to a flow, encrypted."""

    def __init__(
        self, inner: Operation[[Ref, int, Sequence[NewJob], str], FlowInfo | None], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, ref: Ref, join: int, jobs: Sequence[NewJob], key: str, /) -> FlowInfo | None:
        return await self._inner.run(ref, join, self._cipher.encrypt_jobs(jobs), key)

    def run_sync(self, ref: Ref, join: int, jobs: Sequence[NewJob], key: str, /) -> FlowInfo | None:
        return self._inner.run_sync(ref, join, self._cipher.encrypt_jobs(jobs), key)


def decrypted(cipher: FieldCipher, nodes: list[FlowNode | None]) -> list[FlowNode | None]:
    """These nodes, with their results decrypted."""
    return [None if node is None else _decrypted(cipher, node) for node in nodes]


def _decrypted(cipher: FieldCipher, node: FlowNode) -> FlowNode:
    if not node.result or node.job is None:  # an empty one stands for a result that was removed after its use
        return node
    return replace(node, result=cipher.decrypt_result(node.result, node.job))
