"""What every fact of a ledger has."""

from __future__ import annotations

import re

import msgspec

__all__ = ["Fact", "JobFact"]


def _tag(name: str) -> str:
    """The value of `fact` in JSON: the class name in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Fact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag=_tag, omit_defaults=True):
    """The parent class of all facts. `gc=False`: facts are in no reference cycle, and there are millions."""

    at: int
    mono: int
    pid: int


class JobFact(Fact, frozen=True):
    """The parent class of facts about one job."""

    queue: str
    id: str
