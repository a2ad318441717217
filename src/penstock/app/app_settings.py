"""The settings of an app: arguments in code take precedence over the environment and penstock.toml."""

from __future__ import annotations

from typing import Any

from penstock.client.options import Options
from penstock.config import KNOBS, load
from penstock.core.errors import ConfigError
from penstock.encryption import Cipher, Keyring, read_keys


class AppSettings:
    """The settings of an app from the environment and penstock.toml. Arguments in code take precedence."""

    def __init__(self) -> None:
        loaded = load()
        self._set = {name for name in KNOBS if loaded.source(name) != "default"}
        self._config = loaded.config

    def or_else(self, given: Any, name: str, default: Any) -> Any:
        if given is not None:
            return given
        return getattr(self._config, name) if name in self._set else default

    def cipher(self, encryption_key: Any, encrypt: bool | None, required: bool | None) -> Cipher | None:
        """The cipher of an app; None if it has no key."""
        encrypts = _flag("encrypt", self.or_else(encrypt, "encrypt", True))
        refuses = _flag("key_required", self.or_else(required, "key_required", False))
        given = read_keys(self._config.key) if encryption_key is None and self._config.key else None
        if encryption_key is not None:
            given = read_keys(encryption_key, "App(): key")
        if given is not None:
            return Cipher(Keyring(given), encrypt=encrypts, required=refuses)
        if refuses:
            raise ConfigError(
                "App(): key_required=True, and there is no key: give one with key= or PENSTOCK_KEY"
            )
        return None

    def options(self) -> Options:
        """The defaults of tasks that are set there."""
        names = self._set & {"queue", "timeout", "max_attempts", "retention"}
        return Options(**{name: getattr(self._config, name) for name in names})


def number_setting(name: str, value: int | str) -> int:
    """Read a number as the setting of this name does. Raises ConfigError."""
    try:
        number: int = KNOBS[name].kind.read(name, value)
    except ConfigError as error:
        raise ConfigError(f"App(): {error}") from None
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"App(): {name}={value!r} is not True or False")
    return value
