"""What can be undone for a minute: the steps of an undo, kept in the store under a name nobody can guess."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.ids import mint
from penstock.core.job import Ref
from penstock.inspector import Change, JobAct, UndoStep
from penstock.stores.contract import DocumentChange, DocumentStatus, Store
from penstock.stores.contract.documenting import LARGEST_DOCUMENT
from penstock.stores.worker_commands import read_document
from penstock.web.dashboard.view import View

_KIND = "dashboard-undo"
#: How long (ms) an act can be undone.
_VALID = 60_000
_NAME = re.compile(r"[0-9a-f-]{36}")
_DECODER = msgspec.json.Decoder(list[UndoStep])


class UndoTickets:
    """Keeps the steps of undos in the store, so that any process of a dashboard can do them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, steps: Sequence[UndoStep]) -> str:
        """The name under which these steps are kept; "" if there are none, or too many."""
        body = msgspec.json.encode(steps)
        if not steps or len(body) > LARGEST_DOCUMENT:
            return ""
        change = DocumentChange(mint(), body, 0, _VALID)
        (written,) = await self._store.change_documents(_KIND, [change])
        return change.name if written.status is DocumentStatus.APPLIED else ""

    async def take(self, name: str) -> list[UndoStep]:
        """The steps under this name, which nobody else gets; none if it is too late."""
        document = None
        if _NAME.fullmatch(name):
            document, _ = await read_document(self._store, _KIND, name)
        if document is None:
            return []
        gone = DocumentChange(document.name, None, document.revision)
        (written,) = await self._store.change_documents(_KIND, [gone])
        return _DECODER.decode(document.body) if written.status is DocumentStatus.APPLIED else []


async def act_with_undo(
    view: View, act: JobAct, refs: Sequence[Ref], arguments: dict[str, Any]
) -> tuple[list[Change], str]:
    """Do an act to jobs. Returns what became of them, and the path that undoes it; "" if nothing can."""
    steps = await view.inspector.prepare_undo(act, refs, to=arguments.get("to", ""))
    within = view.queues_for(act)
    changes = await view.inspector.act(act, refs, within=within, **arguments)
    done = {(change.queue, change.id) for change in changes if change.outcome == "done"}
    undone = [step for step in steps if (step.to or step.queue, step.id) in done]
    ticket = await UndoTickets(view.shared.store).keep(undone)
    return changes, f"/jobs/undo/{ticket}" if ticket else ""
