"""What a child process reports to its pool."""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock.core.job import Progress
from penstock.stores.job_log import LogLine
from penstock.worker.pools.calls import ChildDied, EncodedResult, ProcessCall

__all__ = ["ChildEvents"]

_Child = TypeVar("_Child", contravariant=True)


class ChildEvents(Protocol[_Child]):
    """Receives the events of child processes."""

    def ended(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        """A call has ended."""

    def progressed(self, call: ProcessCall, progress: Progress | LogLine) -> None:
        """A call has reported progress, or logged a line."""

    def received(self, child: _Child) -> None:
        """All messages that had arrived from this child have been handled."""

    def died(self, child: _Child, error: ChildDied, unstarted: list[ProcessCall]) -> None:
        """The process has ended; these calls never began. The call that ran has ended before."""
