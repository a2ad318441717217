"""lmstfy's two listeners over stores: the data API, and the API that manages tokens."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.dialects.lmstfy.admin_api import AdminApi
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.counters import HttpMetrics
from penstock.dialects.lmstfy.data_api import DataApi
from penstock.dialects.lmstfy.defaults import Defaults
from penstock.dialects.lmstfy.limits import TokenLimits
from penstock.dialects.lmstfy.metrics import metrics_text
from penstock.dialects.lmstfy.tokens import DEFAULT_POOL, Tokens
from penstock.stores.contract import Store
from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds
from penstock.web.hosts import HostRule
from penstock.web.server import HttpServer

__all__ = ["LmstfyService"]


class LmstfyService:
    """Serves stores as lmstfy does.

    - `stores`: by the name of the pool that a token's prefix chooses; one must be "default". Tokens are kept
      in the store of that one.
    - `need_tokens=False`: the data API answers without a token.
    - `fixed_tokens`: tokens by namespace that are valid besides those in the store.
    - `accounts`: names and passwords for the routes that manage tokens; empty: these need none.
    - `need_admin`: without accounts, these routes need a native token with the right `admin`.
    - `public_sizes=False`: the sizes of queues need a token, too.
    - `hosts`, `admin_hosts`: which `Host` headers the two listeners accept.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        *,
        need_tokens: bool = True,
        fixed_tokens: Mapping[str, frozenset[str]] | None = None,
        accounts: Mapping[str, str] | None = None,
        need_admin: bool = False,
        public_sizes: bool = True,
        hosts: HostRule | None = None,
        admin_hosts: HostRule | None = None,
        defaults: Defaults | None = None,
        bounds: HttpBounds = DEFAULT_BOUNDS,
    ) -> None:
        self.backends = {name: Backend(store, name) for name, store in stores.items()}
        self.tokens = Tokens(stores[DEFAULT_POOL], fixed_tokens)
        self.limits = TokenLimits(stores[DEFAULT_POOL])
        data = DataApi(
            self.backends,
            self.tokens if need_tokens else None,
            self.limits,
            metrics := HttpMetrics(),
            hosts=hosts or HostRule(),
            public_sizes=public_sizes,
            defaults=defaults,
        )
        admin = AdminApi(
            self.backends,
            self.tokens,
            self.limits,
            metrics=lambda: metrics_text(metrics, self.backends, self.data_server.connections),
            hosts=admin_hosts or HostRule(),
            accounts=accounts,
            need_admin=need_admin,
        )
        self._data, self._admin = data, admin
        self.data_server = HttpServer(data.handle, body_limit=data.body_limit, bounds=bounds)
        self.admin_server = HttpServer(admin.handle, body_limit=admin.body_limit, bounds=bounds)

    async def start(self, host: str, port: int) -> int:
        """Serve the data API at this address, and start the timers; returns the port."""
        for backend in self.backends.values():
            backend.start()
        return await self.data_server.listen(host, port)

    async def start_admin(self, host: str, port: int) -> int:
        """Serve the admin API at this address; returns the port."""
        return await self.admin_server.listen(host, port)

    async def stop(self, grace: float = 30.0) -> None:
        """Stop: no new connections; waiting requests get their answer, requests in flight end."""
        await self.admin_server.stop(min(grace, 1.0))
        self.data_server.close_listeners()
        for backend in self.backends.values():
            await backend.dispatcher.stop()
        await self._data.drained()
        await self.data_server.stop(grace)
        for backend in self.backends.values():
            await backend.stop()
