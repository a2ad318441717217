"""A verb as the runner sees it, and one call of it on its way to an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.needs_write import NeedsWrite

__all__ = ["PendingCall", "Verb"]

P = ParamSpec("P")
R = TypeVar("R")


class Verb(Generic[P, R]):
    """A function of a TransactionContext, and how it is to be run.

    `reads`: it changes nothing and needs no write lock. `probe`: may answer without a write. `syncs`: whether
    what it has written must survive a power cut once it is answered; a function decides by the arguments.
    """

    __slots__ = ("act", "probe", "reads", "syncs")

    def __init__(
        self,
        act: Callable[Concatenate[TransactionContext, P], R],
        *,
        probe: Callable[Concatenate[TransactionContext, P], R | NeedsWrite] | None = None,
        reads: bool = False,
        syncs: Callable[P, bool] | bool = True,
    ) -> None:
        self.act = act
        self.probe = act if reads else probe
        self.reads = reads
        self.syncs: Callable[..., bool] | bool = False if reads else syncs


class PendingCall:
    """One question, and where its answer goes: into a future of a loop, or to a thread at its gate."""

    __slots__ = ("answer", "args", "asked_at", "error", "future", "gate", "loop", "verb", "writes")

    def __init__(self, verb: Verb[..., Any], args: tuple[Any, ...]) -> None:
        self.verb = verb
        self.args = args
        self.writes = verb.probe is None  # or a probe has found that it must
        self.answer: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.gate: threading.Event | None = None
        self.asked_at = 0.0

    @property
    def syncs(self) -> bool:
        """Whether its commit must be on the disk before it is answered."""
        syncs = self.verb.syncs
        return syncs if isinstance(syncs, bool) else syncs(*self.args)
