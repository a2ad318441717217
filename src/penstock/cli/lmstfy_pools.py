"""The stores, pools and settings of `penstock serve --lmstfy`, from its options and from lmstfy's file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from penstock.cli.session import Session
from penstock.core.errors import ConfigError, StoreError
from penstock.core.security import is_loopback
from penstock.dialects.lmstfy.names import DEFAULT_POOL
from penstock.dialects.lmstfy.service import LmstfyService, PoolMigration
from penstock.dialects.lmstfy.settings import LmstfyConfig, LmstfySettings, PoolConfig, read_config
from penstock.stores.connect import shown_store
from penstock.stores.contract import Finding, Level
from penstock.web.hosts import HostRule

if TYPE_CHECKING:
    from penstock.stores.contract import Store

_log = logging.getLogger("penstock.lmstfy")

#: Stores without a server, which have no settings to check.
_ON_THIS_MACHINE = ("memory:", "sqlite:")

#: Options that a file may give, and the fields of its settings.
_FROM_FILE = {
    "host": "host",
    "port": "port",
    "admin_host": "admin_host",
    "admin_port": "admin_port",
    "log_level": "log_level",
    "log_format": "log_format",
}


class Pools(NamedTuple):
    """The stores of a service, by pool, and the pools that are drained."""

    stores: dict[str, Store]
    migrations: dict[str, PoolMigration]
    admin_store: Store

    @property
    def urls(self) -> str:
        """The stores for a message, without secrets."""
        return ", ".join(dict.fromkeys(store.url for store in self.stores.values()))

    @property
    def shown(self) -> str:
        """The same, with files that do not exist yet."""
        return ", ".join(dict.fromkeys(map(shown_store, self.stores.values())))


def read_file(options: dict[str, Any]) -> LmstfyConfig | None:
    """Read the file of --config, and let it give the options that the command line leaves out."""
    if options["config"] is None:
        return None
    context = click.get_current_context()
    if "url" in Session.current().options:
        raise click.UsageError("--config names the stores of all pools: leave --url out")
    config = read_config(options["config"])
    for option, field in _FROM_FILE.items():
        value = getattr(config, field)
        if value is not None and context.get_parameter_source(option) is click.core.ParameterSource.DEFAULT:
            options[option] = value
    return config


def read_settings(options: Mapping[str, Any], config: LmstfyConfig | None) -> LmstfySettings:
    """The settings that a reload may change; options of the command line take precedence."""
    found = LmstfySettings() if config is None else config.settings
    accounts = {**found.accounts, **dict(_pairs(options["accounts"], "--account"))}
    return msgspec.structs.replace(
        found, accounts=accounts, access_log=options["access_log"] or found.access_log
    )


@contextmanager
def open_pools(config: LmstfyConfig | None) -> Iterator[Pools]:
    """The stores of all pools; closed at the end."""
    session = Session.current()
    with ExitStack() as opened:
        if config is None:
            store = opened.enter_context(session.store(create=True))
            yield Pools({DEFAULT_POOL: store}, {}, store)
            return
        by_url: dict[str, Store] = {}

        def open_one(url: str) -> Store:
            if url not in by_url:
                by_url[url] = _connected(session, url)
                opened.callback(by_url[url].close)
            return by_url[url]

        stores = {name: open_one(pool.url) for name, pool in config.pools.items() if pool.url}
        migrations = {
            name: PoolMigration(pool.migrate_to, _upstream(name, pool))
            for name, pool in config.pools.items()
            if pool.migrate_to
        }
        default = stores.get(DEFAULT_POOL) or stores[config.pools[DEFAULT_POOL].migrate_to]
        admin = open_one(config.admin_url) if config.admin_url else default
        yield Pools(stores, migrations, admin)


def check_stores(pools: Pools, config: LmstfyConfig | None) -> None:
    """Log what puts jobs of a Redis at risk. Raises ConfigError for a Redis that lmstfy would refuse.

    That is one without an append-only file or with eviction, if the file gives it as lmstfy's files do.
    """
    stores = {f"Pool.{name}": store for name, store in pools.stores.items()}
    stores["AdminRedis"] = pools.admin_store
    found = asyncio.run(
        _checkups({one for one in stores.values() if not one.url.startswith(_ON_THIS_MACHINE)})
    )
    for store, findings in found.items():
        for one in findings:
            if one.level is not Level.FINE:
                _log.log(
                    logging.ERROR if one.level is Level.ERROR else logging.WARNING, "%s: %s", store.url, one
                )
    addresses = frozenset[str]() if config is None else config.addresses
    problems = [
        f"{name}: {one}"
        for name, store in stores.items()
        for one in found.get(store, ())
        if one.loses_jobs and name in addresses
    ]
    if problems:
        way_out = "or write Addr as a URL, redis://HOST:PORT, which is served with a warning"
        raise ConfigError("\n".join([*problems, way_out]))


async def _checkups(stores: Collection[Store]) -> dict[Store, list[Finding]]:
    """What the stores find about themselves; those that do not answer are left out."""
    answers = await asyncio.gather(*(store.checkup() for store in stores), return_exceptions=True)
    found: dict[Store, list[Finding]] = {}
    for store, answer in zip(stores, answers, strict=True):
        if isinstance(answer, StoreError):
            _log.warning("%s: its settings are unknown: %s", store.url, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[store] = answer
    return found


def _connected(session: Session, url: str) -> Store:
    from penstock.stores.connect import connect
    from penstock.stores.encrypted import encrypted_with_config

    config = session.load().config
    return encrypted_with_config(connect(url, namespace=config.namespace), config)


def _upstream(name: str, pool: PoolConfig) -> Any:
    if not pool.upstream:
        return None
    from penstock.dialects.lmstfy.upstream import OldLmstfy

    tokens = {"": pool.upstream_token, **pool.upstream_tokens}
    return OldLmstfy(pool.upstream, tokens, admin_url=pool.upstream_admin, account=pool.upstream_account)


def make_service(pools: Pools, options: Mapping[str, Any], accounts: Mapping[str, str]) -> LmstfyService:
    """The service over these pools, with these accounts. Raises click.UsageError."""
    tokens: dict[str, frozenset[str]] = {}
    for namespace, token in _pairs(options["tokens"], "--token"):
        tokens[namespace] = tokens.get(namespace, frozenset()) | {token}
    beyond = options["unix"] is None and not is_loopback(options["host"])
    admin_beyond = options["admin_unix"] is None and not is_loopback(options["admin_host"])
    # every name may stand in `Host` if a request needs a secret, which no page of another site knows, and at
    # a Unix socket, which no page can reach
    tokens_needed = beyond and not options["no_tokens"]
    account_needed = admin_beyond and bool(accounts or options["admin_tokens"])
    return LmstfyService(
        pools.stores,
        migrations=pools.migrations,
        admin_store=pools.admin_store,
        need_tokens=not options["no_tokens"],
        fixed_tokens=tokens,
        need_admin=options["admin_tokens"],
        asynq_names=options["asynq_names"],
        accounts=accounts,
        hosts=_host_rule(options, open_to_all=tokens_needed or options["unix"] is not None),
        admin_hosts=_host_rule(options, open_to_all=account_needed or options["admin_unix"] is not None),
        public_sizes=options["public_sizes"] or not beyond,
        public_info=options["public_info"] or not admin_beyond,
    )


def _host_rule(options: Mapping[str, Any], *, open_to_all: bool) -> HostRule:
    return HostRule(options["hosts"], open_to_all=open_to_all and not options["hosts"])


def _pairs(values: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for value in values:
        name, colon, secret = value.partition(":")
        if not colon or not name or not secret:
            raise click.UsageError(f"{option}: write two parts with a colon between them")
        pairs.append((name, secret))
    return pairs
