"""Which values of `Host` and `Origin` a listener accepts, against DNS rebinding and cross-site requests.

A page of a browser can send requests to any address, also to a listener on loopback. If it reaches the
listener by a name that its own DNS server resolved, `Host` shows that name. Requests from another site carry
`Origin` or `Sec-Fetch-Site`. Clients that are no browsers send neither.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from penstock.web.exchange import Exchange
from penstock.web.text_cache import TextCache

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class HostRule:
    """Accepts IP addresses, `localhost` and the given names as `Host`; `open_to_all` accepts every name."""

    def __init__(self, names: Collection[str] = (), *, open_to_all: bool = False) -> None:
        self._known: dict[str, bool] = {name.lower(): True for name in names}
        self._open = open_to_all
        self._accepts = TextCache(self._decide, entries=256)

    def accepts(self, host: str | None, origin: str | None) -> bool:
        """Whether a request with these headers may be answered."""
        return self._accepts[host, origin]

    def refusal(self, exchange: Exchange) -> str:
        """Why a request may not be answered; "" if it may.

        A request of a browser must come from a page of this listener, or from no page. If it changes
        something, it must be JSON: a form of any page could send everything else.
        """
        origin = exchange.header(b"origin")
        if not self._accepts[exchange.header(b"host"), origin]:
            return "host not allowed"
        site = exchange.header(b"sec-fetch-site")
        if origin is None and site is None:
            return ""
        if site not in (None, "same-origin", "none"):
            return "request from another site"
        if exchange.method in _READING:
            return ""
        if origin is None:
            return "a browser must send Origin"
        kind = (exchange.header(b"content-type") or "").partition(";")[0].strip().lower()
        return "" if kind == "application/json" else "a browser must send application/json"

    def _decide(self, sent: tuple[str | None, str | None]) -> bool:
        host, origin = sent
        if host is None:
            return self._open
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return False
        return self._open or self._is_known(host_of(host))

    def _is_known(self, name: str) -> bool:
        name = name.lower()
        return name == "localhost" or name in self._known or is_address(name)


def host_of(value: str) -> str:
    """The name or address in a `Host` header, without the port."""
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0] if value.count(":") <= 1 else value


def is_address(text: str) -> bool:
    """Whether this is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def network_of(address: str) -> str:
    """The address of a client, or of IPv6 its first 64 bits: one client may have all addresses with these."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address)
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.IPv6Address(int(found) >> 64 << 64))
