"""Which values of `Host` and `Origin` a listener accepts, against DNS rebinding and cross-site requests.

A page of a browser can send requests to any address, also to a listener on loopback. If it reaches the
listener by a name that its own DNS server resolved, `Host` shows that name. Requests from another site carry
`Origin`.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Collection

__all__ = ["HostRule", "host_of", "is_loopback"]


class HostRule:
    """Accepts IP addresses, `localhost` and the given names as `Host`; `open_to_all` accepts every name."""

    def __init__(self, names: Collection[str] = (), *, open_to_all: bool = False) -> None:
        self._known: dict[str, bool] = {name.lower(): True for name in names}
        self._open = open_to_all
        self._accepts = functools.lru_cache(maxsize=256)(self._decide)

    def accepts(self, host: str | None, origin: str | None) -> bool:
        """Whether a request with these headers may be answered."""
        return self._accepts(host, origin)

    def _decide(self, host: str | None, origin: str | None) -> bool:
        if host is None:
            return self._open
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return False
        return self._open or self._is_known(host_of(host))

    def _is_known(self, name: str) -> bool:
        name = name.lower()
        return name == "localhost" or name in self._known or _is_address(name)


def host_of(value: str) -> str:
    """The name or address in a `Host` header, without the port."""
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0] if value.count(":") <= 1 else value


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener at this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
