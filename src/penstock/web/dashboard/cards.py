"""A card is a part of a page that fails alone: the others are shown."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.core.errors import PenstockError

__all__ = ["Card", "card"]

_log = logging.getLogger("penstock.web")

T = TypeVar("T")


@dataclass(frozen=True)
class Card(Generic[T]):
    """What a card shows, or why it cannot be shown."""

    value: T | None = None
    error: str = ""


async def card(read: Awaitable[T]) -> Card[T]:
    """Read what a card shows. An error of the store becomes the text of the card."""
    try:
        return Card(await read)
    except PenstockError as error:
        return Card(error=str(error) or type(error).__name__)
    except Exception as error:  # noqa: BLE001  # boundary: a fault in one card must not hide the others
        _log.exception("a card of the dashboard failed")
        return Card(error=f"This part of the page failed ({type(error).__name__}); the log has the details.")
