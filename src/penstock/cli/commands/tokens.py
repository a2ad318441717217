"""`penstock tokens`: create, list and revoke the tokens of HTTP clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.cli.faults import not_found
from penstock.cli.formats import age
from penstock.cli.session import AuditedAct, Command, Session
from penstock.cli.show import ask, emit, note, say, table
from penstock.core.errors import did_you_mean
from penstock.core.formats import instant, iso, milliseconds

if TYPE_CHECKING:
    from penstock.stores.contract import Store
    from penstock.web.access import AccessTokens
    from penstock.web.access_tokens import AccessToken

T = TypeVar("T")


@click.group("tokens")
def command() -> None:
    """Create, list and revoke access tokens.

    Visitors of the dashboard and HTTP clients identify themselves with a token.
    """


@command.command("create", cls=Command)
@click.argument("name", metavar="NAME")
@click.option(
    "--allow",
    "scopes",
    multiple=True,
    required=True,
    metavar="RIGHTS[:QUEUES]",
    help="Rights (produce, consume, read, operate, admin), and the queues they are for, "
    "e.g. produce,consume:mail.*,orders. May be repeated.  [default: all queues]",
)
@click.option(
    "--expires", metavar="DURATION", help="Time until the token expires, e.g. 90d.  [default: never]"
)
@click.option(
    "--rate",
    metavar="RATE",
    help="Maximum number of requests per time, at all servers together, e.g. 100/s.  [default: none]",
)
@click.option("--description", metavar="TEXT", default="", help="A note that the list shows.")
def create(
    name: str, scopes: tuple[str, ...], expires: str | None, rate: str | None, description: str
) -> None:
    """Create a token and print it. The store keeps only its hash: the token cannot be shown again.

    \b
    produce  enqueue jobs
    consume  take jobs and settle them
    read     see jobs and sizes
    operate  remove and retry jobs of others; includes read
    admin    everything, and tokens and limits

    The name stands for the token in lists, logs and the audit log.
    """
    from penstock.web.access_tokens import TokenScope, check_request_rate

    session = Session.current()
    given = [TokenScope.of(text) for text in scopes]
    lasts = None if expires is None else max(1, milliseconds(expires, what="expires"))
    limit = None if rate is None else check_request_rate(rate)

    async def acting(tokens: AccessTokens, store: Store) -> tuple[AccessToken, str]:
        made = await tokens.create(name, given, expires_in=lasts, rate=limit, description=description)
        facts = {
            "scopes": " ".join(str(scope) for scope in given),
            "expires": iso(made[0].expires_at) or "never",
        }
        await AuditedAct("tokens.create", [name], facts).write(store)
        return made

    token, secret = _run(session, acting, create=True)
    if session.json:
        emit({"token": secret, **token.to_dict(token.created_at)})
        return
    say(secret)
    expiry = (
        "it does not expire" if token.expires_at is None else f"it expires at {instant(token.expires_at)}"
    )
    note(f"{name}: store the token now, it cannot be shown again; {expiry}")


@command.command("list", cls=Command)
def list_() -> None:
    """List the tokens with their rights. Expired tokens are shown for 30 more days."""
    session = Session.current()

    async def acting(tokens: AccessTokens, store: Store) -> tuple[list[AccessToken], int]:
        return await tokens.all(), await tokens.now()

    tokens, now = _run(session, acting)
    if session.json:
        emit({"tokens": [token.to_dict(now) for token in tokens]})
        return
    table(
        ("NAME", "ALLOWS", "RATE", "CREATED", "EXPIRES", "STATUS", "DESCRIPTION"),
        [_line(token, now) for token in tokens],
        empty="no tokens yet: `penstock tokens create` makes one",
    )


def _line(token: AccessToken, now: int) -> tuple[str, ...]:
    return (
        token.name,
        " ".join(str(scope) for scope in token.scopes),
        "-" if token.rate is None else str(token.rate),
        age(token.created_at),
        age(token.expires_at) or "never",
        "expired" if token.expired(now) else "valid",
        token.description,
    )


@command.command("revoke", cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def revoke(names: tuple[str, ...], yes: bool) -> None:
    """Revoke tokens. All servers refuse them within 200 ms."""
    session = Session.current()

    async def check(tokens: AccessTokens, store: Store) -> None:
        _check_known(names, [token.name for token in await tokens.all()])

    async def acting(tokens: AccessTokens, store: Store) -> dict[str, bool]:
        revoked: dict[str, bool] = {}
        for name in dict.fromkeys(names):
            revoked[name] = await tokens.revoke(name)
            if revoked[name]:
                await AuditedAct("tokens.revoke", [name]).write(store)
        return revoked

    _run(session, check)
    if not yes:
        ask(f"revoke {', '.join(names)}?")
    revoked = _run(session, acting)
    if session.json:
        emit({"tokens": [{"name": name, "revoked": gone} for name, gone in revoked.items()]})
        return
    for name, gone in revoked.items():
        say(f"{name}: {'revoked' if gone else 'was revoked by somebody else'}")


def _check_known(names: Iterable[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or "; `penstock tokens list` lists all"
            raise not_found(f"there is no token {name!r}{hint}")


def _run(session: Session, act: Callable[[AccessTokens, Store], Awaitable[T]], *, create: bool = False) -> T:
    from penstock.stores.contract import Capability, Documents, unsupported
    from penstock.web.access import AccessTokens

    async def acting(store: Store) -> T:
        if not store.can(Capability.DOCUMENTS):
            raise unsupported(store.url, Documents)
        return await act(AccessTokens(store), store)

    return session.run_on_store(acting, create=create)
