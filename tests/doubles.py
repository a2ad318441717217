"""Stores for tests that do one verb in a way of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from penstock.stores.contract import AnyAct, Changed, ChangeJobs, JobEdit, JobMove, Request, Store

__all__ = ["Double"]


class Double:
    """The store itself; a subclass has the methods of the verbs that it does otherwise.

    Requests go through these methods, too: so a store around a double asks the double.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def ask(self, request: Request[Any]) -> Any:
        own = getattr(type(self), request.called, None)
        if own is None:
            return await self._store.ask(request)
        if isinstance(request, ChangeJobs):
            return await self._change(request.acts, own)
        given, named = [], {}
        for name, parameter in inspect.signature(type(request)).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                named[name] = getattr(request, name)
            else:
                given.append(getattr(request, name))
        return await own(self, *given, **named)

    async def _change(self, acts: Sequence[AnyAct], own: Callable[..., Any]) -> list[Changed]:
        """Acts of one kind through the method of the act."""
        first = acts[0]
        if isinstance(first, JobEdit):
            done = zip(acts, await own(self, acts), strict=True)
            return [Changed(act.seen.state, True) if one else Changed() for act, one in done]  # type: ignore[union-attr]
        if isinstance(first, JobMove):
            return [Changed(moved=one) for one in await own(self, acts)]
        options = {name: getattr(first, name) for name in first.__struct_fields__[1:]}
        return [Changed(one) for one in await own(self, [act.ref for act in acts], **options)]  # type: ignore[union-attr]
