"""lmstfy's two listeners over stores: the data API, and the API that manages tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from penstock.dialects.lmstfy.access import Tokens, given_token, read_token
from penstock.dialects.lmstfy.admin_api import AdminApi, Operations, shown_path
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.data_api import DataApi
from penstock.dialects.lmstfy.limits import TokenLimits
from penstock.dialects.lmstfy.metrics import HttpMetrics, own_counts, queue_sizes
from penstock.dialects.lmstfy.migration import MigratingBackend
from penstock.dialects.lmstfy.names import DEFAULT_POOL
from penstock.dialects.lmstfy.old_pools import ACCESS_TOKENS, LMSTFY_TOKENS, OldPool, OldStore, TokenCopy
from penstock.dialects.lmstfy.settings import Defaults, LmstfySettings
from penstock.dialects.lmstfy.upstream import OldLmstfy, take_over_tokens
from penstock.stores.contract import Store
from penstock.web.access_log import AccessLog
from penstock.web.asgi import AsgiApp
from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds
from penstock.web.exchange import Exchange
from penstock.web.exposition import with_others
from penstock.web.hosts import HostRule
from penstock.web.server import HttpServer
from penstock.web.store_metrics import (
    Samples,
    asynq_metrics,
    cpu_metric,
    process_metrics,
    queue_metrics,
    read_stores,
)


class PoolMigration(NamedTuple):
    """A pool that is drained: the pool that gets its jobs, and the lmstfy that has them, if it is one."""

    to: str
    upstream: OldPool | None = None


class LmstfyService:
    """Serves stores as lmstfy does.

    - `stores`: by the name of the pool that a token's prefix chooses; one must be "default", or a
      migration.
    - `migrations`: by pool, where its jobs go and what it has been: its store in `stores`, or an lmstfy.
    - `admin_store`: where tokens and limits are kept; by default the store of the pool "default".
    - `need_tokens=False`: the data API answers without a token.
    - `fixed_tokens`: tokens by namespace that are valid besides those in the store.
    - `accounts`: names and passwords for the routes that manage tokens; empty: these need none.
    - `need_admin`: without accounts, these routes need a native token with the right `admin`.
    - `public_info=False`: the names of pools and queues, and the state of migrations, need an account, too.
    - `public_sizes=False`: the sizes of queues need a token, too.
    - `asynq_names`: the metrics of queues also under asynq's names.
    - `asgi`, `admin_asgi`: both APIs as ASGI applications, which work inside `async with service`.
    - `hosts`, `admin_hosts`: which `Host` headers the two listeners accept.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        *,
        migrations: Mapping[str, PoolMigration] | None = None,
        admin_store: Store | None = None,
        need_tokens: bool = True,
        fixed_tokens: Mapping[str, frozenset[str]] | None = None,
        accounts: Mapping[str, str] | None = None,
        need_admin: bool = False,
        public_sizes: bool = True,
        public_info: bool = True,
        hosts: HostRule | None = None,
        admin_hosts: HostRule | None = None,
        defaults: Defaults | None = None,
        bounds: HttpBounds = DEFAULT_BOUNDS,
        asynq_names: bool = False,
    ) -> None:
        data_log, admin_log = AccessLog("data", pool=self._pool_of), AccessLog("admin", path=shown_path)
        self.operations = Operations([data_log, admin_log], self._counted)
        self._http_metrics = HttpMetrics()
        self._asynq_names = asynq_names
        kept_in = admin_store or stores.get(DEFAULT_POOL)
        self.backends = _backends(stores, migrations or {}, kept_in)
        self._upstreams = {
            name: one.upstream
            for name, one in (migrations or {}).items()
            if isinstance(one.upstream, OldLmstfy)
        }
        kept_in = kept_in or self.backends[DEFAULT_POOL].store
        self.tokens = Tokens(kept_in, fixed_tokens)
        self.limits = TokenLimits(kept_in)
        data = DataApi(
            self.backends,
            self.tokens if need_tokens else None,
            self.limits,
            self._http_metrics,
            hosts=hosts or HostRule(),
            public_sizes=public_sizes,
            defaults=defaults,
        )
        admin = AdminApi(
            self.backends,
            self.tokens,
            self.limits,
            metrics=self._metrics_of_all,
            hosts=admin_hosts or HostRule(),
            operations=self.operations,
            accounts=accounts,
            need_admin=need_admin,
            public_info=public_info,
        )
        self._data, self._admin = data, admin
        self.asgi = AsgiApp(
            data.handle, data.body_limit, bounds=bounds, access_log=data_log, prove=data.prove
        )
        self.admin_asgi = AsgiApp(admin.handle, admin.body_limit, bounds=bounds, access_log=admin_log)
        self.data_server = HttpServer(
            data.handle, body_limit=data.body_limit, bounds=bounds, access_log=data_log, prove=data.prove
        )
        self.admin_server = HttpServer(
            admin.handle, body_limit=admin.body_limit, bounds=bounds, access_log=admin_log
        )

    def _pool_of(self, exchange: Exchange) -> str:
        """The pool that a request asks; "" if there is none of this name, whatever a client has written."""
        pool, _ = read_token(given_token(exchange))
        return pool if pool in self.backends else ""

    async def _metrics_of_all(self) -> str:
        """The metrics of this server: what comes from the stores, and what all its processes count.

        A store that is away lacks those that come from it.
        """
        reports = await read_stores({name: backend.store for name, backend in self.backends.items()})
        parts = [self._counted_here(), *queue_sizes(reports), *queue_metrics(reports)]
        if self._asynq_names:
            parts += asynq_metrics(reports[DEFAULT_POOL])
        text = "".join([*parts, *process_metrics()])
        return with_others(text, await self.operations.counted_by_others())

    def _counted(self) -> str:
        """What this process counts itself, for the answer of another one."""
        return self._counted_here() + cpu_metric()

    def _counted_here(self) -> str:
        pools = [backend.metrics for backend in self.backends.values()]
        waiting: Samples = [((name,), one.dispatcher.waiting) for name, one in self.backends.items()]
        return own_counts(self._http_metrics, pools, waiting, self.data_server.connections)

    async def __aenter__(self) -> Self:
        """Start the timers, for `asgi` and `admin_asgi` in an application of somebody else."""
        await self.take_over()
        self.start_timers()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def take_over(self) -> None:
        """Copy the tokens and limits of old servers that are drained."""
        for name, old in self._upstreams.items():
            await take_over_tokens(old, name, self.tokens, self.limits)

    def start_timers(self) -> None:
        """Start what happens by time, in the running event loop."""
        for backend in self.backends.values():
            backend.start()

    def apply(self, settings: LmstfySettings) -> None:
        """Use these settings from now on."""
        self._data.defaults = settings.defaults
        self._admin.accounts = dict(settings.accounts)
        self.operations.access_log.apply(settings.access_log)

    async def start(self, host: str, port: int) -> int:
        """Serve the data API at this address, and start the timers; returns the port."""
        self.start_timers()
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


def _backends(
    stores: Mapping[str, Store], migrations: Mapping[str, PoolMigration], kept_in: Store | None
) -> dict[str, Backend]:
    """The backends by pool. The tokens of a drained store stay there, and their copies are in the new one."""
    backends: dict[str, Backend] = {
        name: Backend(store, name) for name, store in stores.items() if name not in migrations
    }
    for name, migration in migrations.items():
        new = stores[migration.to]
        if migration.upstream is not None:
            backends[name] = MigratingBackend(new, name, migration.upstream, target=migration.to)
            continue
        old = stores[name]
        kinds = (*ACCESS_TOKENS, *LMSTFY_TOKENS) if old is kept_in else ACCESS_TOKENS
        backends[name] = MigratingBackend(
            new,
            name,
            OldStore(old, name),
            target=migration.to,
            tokens=old,
            services=[TokenCopy(old, new, kinds)],
        )
    return backends
