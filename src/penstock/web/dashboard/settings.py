"""The settings of a dashboard."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigError

#: Names of arguments, result fields and headers whose values are not shown; `*` stands for any characters.
REDACTED = (
    *("*password*", "*passwd*", "*secret*", "*token*", "*api_key*", "*apikey*", "*api-key*"),
    *("authorization", "cookie", "*private_key*", "*credential*", "*card_number*", "cvv", "iban", "ssn"),
)


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """What a dashboard allows and shows.

    - `read_only`: nobody can change anything, whatever rights a visitor has.
    - `redact`: names whose values are hidden, also in nested objects. Letters match in either case.
    - `hosts`: names that the `Host` header may have, besides `localhost` and IP addresses. None: any name,
      because the host application checks it.
    - `open_to_all`: everybody is an administrator while the store has no access token. Only for a listener
      that nobody else reaches.
    - `session_length`: seconds after which a login ends.
    - `interval`: seconds between two reads of the store for all open pages together.
    - `login_url`: where visitors are sent whom the host application's `login` does not know, with the
      page that they asked for as `next`. Without it, they get the status 403.
    """

    read_only: bool = False
    redact: Sequence[str] = REDACTED
    hosts: Collection[str] | None = None
    open_to_all: bool = False
    session_length: float = 12 * 3600.0
    interval: float = 2.0
    login_url: str = ""

    def __post_init__(self) -> None:
        if self.session_length <= 0:
            raise ConfigError(f"session_length={self.session_length!r}: give more than 0 seconds")
        if self.interval < 1:
            raise ConfigError(f"interval={self.interval!r}: give at least 1 second")
        if isinstance(self.redact, str):
            raise ConfigError(f"redact={self.redact!r}: give a list of names, e.g. [{self.redact!r}]")
