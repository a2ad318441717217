"""Brings the arguments of jobs up to date that were enqueued before their task changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.codec.arguments import ArgsCodec
from penstock.codec.shape import MAX_BYTES, shown, spell
from penstock.core.errors import Undecodable

__all__ = ["Upgrade", "UpgradingCodec"]

#: The arguments by name, as plain JSON has them → those that the function takes now.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class UpgradingCodec(ArgsCodec):
    """An ArgsCodec that has what does not fit upgraded, and reads it once more. What fits costs no more."""

    def __init__(
        self, function: Callable[..., Any], upgrade: Upgrade, *, name: str, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(function, name=name, max_bytes=max_bytes)
        self._upgrade = upgrade

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with; raises Undecodable, also where the upgrade fails.

        Where names did not fit and no upgrade helps, that is a SignatureMismatch still: the arguments may
        be newer than this function, of which its upgrade cannot know.
        """
        try:
            return super().decode(payload)
        except Undecodable as misfit:
            upgraded = self._upgraded(payload, misfit)
            try:
                return super().decode(upgraded)
            except Undecodable as still:
                raise type(misfit)(
                    f"{misfit}; and what upgrade= returned does not fit either: {still}"
                ) from None

    def _upgraded(self, payload: bytes, misfit: Undecodable) -> bytes:
        try:
            old = _DECODE(payload)
        except Exception:  # noqa: BLE001  # boundary: every way of not being a JSON object
            raise misfit from None
        try:
            new: Any = self._upgrade(old)
        except Exception as error:  # boundary: a user's function
            raise type(misfit)(
                f"{misfit}; and upgrade= failed with {type(error).__qualname__}: {error}"
            ) from error
        if not isinstance(new, dict):
            raise type(misfit)(f"{misfit}; and upgrade= returned {shown(new)}, not a dict of arguments")
        try:
            return _ENCODE(new)
        except Exception as error:  # boundary: values' own methods run in here
            raise type(misfit)(f"{misfit}; and what upgrade= returned cannot be stored: {error}") from error


_DECODE = msgspec.json.Decoder(dict[str, Any]).decode
_ENCODE = msgspec.json.Encoder(enc_hook=spell).encode
