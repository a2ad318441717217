"""Upgrades the arguments of jobs that were enqueued before their task's parameters changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.codec.arguments import ArgsCodec
from penstock.codec.shape import MAX_BYTES, shown, spell
from penstock.core.errors import Undecodable

__all__ = ["Upgrade", "UpgradingCodec"]

#: A function from the stored arguments by name, as plain JSON, to the current ones.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class UpgradingCodec(ArgsCodec):
    """An ArgsCodec that upgrades arguments which do not fit, and decodes them again.

    Others cost nothing more.
    """

    def __init__(
        self, function: Callable[..., Any], upgrade: Upgrade, *, name: str, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(function, name=name, max_bytes=max_bytes)
        self._upgrade = upgrade

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode the arguments for a call of the function. Raises Undecodable, also if the upgrade fails.

        If names did not fit and the upgrade does not help, the error stays a SignatureMismatch: the arguments
        may be newer than this function and its upgrade.
        """
        try:
            return super().decode(payload)
        except Undecodable as misfit:
            upgraded = self._upgraded(payload, misfit)
            try:
                return super().decode(upgraded)
            except Undecodable as still:
                raise type(misfit)(
                    f"{misfit}; the arguments returned by upgrade= do not fit either: {still}"
                ) from None

    def _upgraded(self, payload: bytes, misfit: Undecodable) -> bytes:
        try:
            old = _DECODE(payload)
        except Exception:  # noqa: BLE001  # boundary: any error means that it is not a JSON object
            raise misfit from None
        try:
            new: Any = self._upgrade(old)
        except Exception as error:  # boundary: a user's function
            raise type(misfit)(
                f"{misfit}; upgrade= failed with {type(error).__qualname__}: {error}"
            ) from error
        if not isinstance(new, dict):
            raise type(misfit)(f"{misfit}; upgrade= returned {shown(new)}, not a dict of arguments")
        try:
            return _ENCODE(new)
        except Exception as error:  # boundary: values' own methods run in here
            raise type(misfit)(
                f"{misfit}; the arguments returned by upgrade= cannot be stored: {error}"
            ) from error


_DECODE = msgspec.json.Decoder(dict[str, Any]).decode
_ENCODE = msgspec.json.Encoder(enc_hook=spell).encode
