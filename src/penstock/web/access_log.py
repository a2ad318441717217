"""A line in the log per request, switched on and off while the server runs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import partial

from penstock.web.exchange import Exchange

_log = logging.getLogger("penstock.access")

_SECRET = re.compile(rb"(^|&)(token=)[^&]*", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"\r\nX-Request-ID: ([^\r]*)\r\n", re.IGNORECASE)
#: Characters of a path and of a query that a line shows.
_LONGEST = 1_000


class AccessLog:
    """Logs requests when they are answered, if `enabled`. Secrets are shown as `***`.

    Logger: `penstock.access`. Level: error for a status from 500, warning for one from 400 other than 404,
    else info. `path` gives the path of a request as it is shown, `pool` the pool that it asks.
    """

    def __init__(
        self,
        name: str,
        *,
        path: Callable[[Exchange], bytes] = lambda exchange: exchange.path,
        pool: Callable[[Exchange], str] = lambda _: "",
    ) -> None:
        self.enabled = False
        self._name = name
        self._path = path
        self._pool = pool

    def watch(self, exchange: Exchange) -> None:
        """Log this request when it is answered, or when its client is gone."""
        # the pool is in headers that a waiting request gives up
        exchange.on_logged = partial(self._write, exchange, self._pool(exchange), time.monotonic_ns())

    def _write(self, exchange: Exchange, pool: str, began: int, reply: bytes | None) -> None:
        status = int(reply[9:12]) if reply else 0
        if status >= 500:
            level = logging.ERROR
        elif status >= 400 and status != 404:
            level = logging.WARNING
        else:
            level = logging.INFO
        found = _REQUEST_ID.search(reply, 0, 2_000) if reply else None
        shown = {
            "listener": self._name,
            "ip": exchange.address,
            "method": exchange.method,
            "path": self._path(exchange)[:_LONGEST].decode("latin-1"),
            "query": _SECRET.sub(rb"\1\2***", exchange.query)[:_LONGEST].decode("latin-1"),
            "pool": pool,
            "code": status,
            "latency": time.monotonic_ns() - began,
            "req_id": found[1].decode("latin-1") if found else "",
        }
        _log.log(level, "%s", " ".join(f"{name}={value}" for name, value in shown.items()), extra=shown)


class AccessLogSwitch:
    """Switches the access logs of a process: as its settings say, or as an operator said since."""

    def __init__(self, logs: Sequence[AccessLog]) -> None:
        self._logs = list(logs)
        self._setting = False

    @property
    def enabled(self) -> bool:
        """Whether requests are logged."""
        return any(log.enabled for log in self._logs)

    def switch(self, enabled: bool) -> None:
        """Log requests, or not, until the settings change."""
        for log in self._logs:
            log.enabled = enabled

    def apply(self, setting: bool) -> None:
        """Use this setting, if it is another one than before."""
        if setting != self._setting:
            self._setting = setting
            self.switch(setting)

    @property
    def state(self) -> list[bool]:
        """The state for `adopt`."""
        return [self._setting, self.enabled]

    def adopt(self, state: Sequence[bool]) -> None:
        """Take over the switch of another process. One made under another setting does not count."""
        setting, enabled = state
        if setting == self._setting:
            self.switch(enabled)
