"""Facts of one Redis server, read from the answers to INFO and CONFIG GET."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


def read_info(reply: bytes | str | Mapping[Any, Any]) -> dict[str, Any]:
    """Parse an INFO reply: text, or a mapping that a driver has already parsed."""
    if isinstance(reply, Mapping):
        return {text_of(name): value for name, value in reply.items()}
    pairs = (line.partition(":") for line in text_of(reply).splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}


def read_config(reply: Mapping[Any, Any] | Iterable[Any]) -> dict[str, str]:
    """Parse a CONFIG GET reply: a mapping, or names and values in turn."""
    if isinstance(reply, Mapping):
        return {text_of(name): text_of(value) for name, value in reply.items()}
    words = [text_of(word) for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


class ServerFacts:
    """The facts of one server: its answers to INFO and CONFIG GET."""

    def __init__(
        self, info: Mapping[str, Any], config: Mapping[str, Any] | None, mode: str, wait_replicas: int
    ) -> None:
        self._info = info
        self._config = config
        self.mode = mode
        self.wait_replicas = wait_replicas

    @property
    def name(self) -> str:
        """The name and version of the server. Valkey also reports a Redis version, for compatibility."""
        if valkey := self.fact("valkey_version"):
            return f"Valkey {valkey}"
        return f"Redis {self.fact('redis_version') or 'of an unknown version'}"

    @property
    def config_known(self) -> bool:
        return bool(self._config)

    @property
    def is_replica(self) -> bool:
        return self.fact("role") in ("slave", "replica")

    def fact(self, name: str) -> str:
        """Return a field of INFO; "" if it is missing."""
        return text_of(self._info.get(name, ""))

    def number(self, name: str) -> int:
        """Return a number of INFO; 0 if it is missing."""
        text = self.fact(name)
        return int(text) if re.fullmatch(r"-?\d+", text) else 0

    def setting(self, name: str) -> str | None:
        """Return a setting; None if it is unknown."""
        value = (self._config or {}).get(name)
        return None if value is None else text_of(value)

    def online_replicas(self) -> int:
        return sum(
            re.fullmatch(r"slave\d+", name) is not None and "online" in text_of(value)
            for name, value in self._info.items()
        )


def text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def percent(used: int, limit: int) -> str:
    return f"{100 * used / limit:.0f} %"
