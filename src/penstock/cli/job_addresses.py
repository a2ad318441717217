"""Errors about the address of a job on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli.faults import CommandError, not_found

if TYPE_CHECKING:
    from penstock.core.job import Ref

__all__ = ["ambiguous", "no_job"]


def no_job(address: str) -> CommandError:
    """The error for an address without a job."""
    return not_found(f"there is no job {address!r}: it was never enqueued here, or is no longer kept")


def ambiguous(address: str, found: Sequence[Ref]) -> CommandError:
    """The error for a bare id that several queues have."""
    places = ", ".join(f"{ref.queue}/{ref.id}" for ref in found)
    return CommandError(f"the id {address!r} is in {len(found)} queues: name one of {places}")
