"""Options of all commands, the store, app and settings that they select, and entries of the audit log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.faults import CommandError, code_of
from penstock.core.errors import ArgumentError, ConfigError

if TYPE_CHECKING:  # not imported to print a help text
    from collections.abc import Iterator

    from penstock.app.app import App
    from penstock.config import Loaded
    from penstock.inspector import Inspector
    from penstock.stores.contract import Store

T = TypeVar("T")


@dataclass
class Session:
    """One run of the command line."""

    json: bool = False
    traceback: bool = False
    #: Settings given as options, before or after the name of the command.
    options: dict[str, Any] = field(default_factory=dict)
    #: Seconds between two looks, with --watch.
    watch: float | None = None
    _open: Store | None = None
    _runner: asyncio.Runner | None = None

    @staticmethod
    def current() -> Session:
        """The session of the running command."""
        return click.get_current_context().find_root().ensure_object(Session)

    def load(self, **options: Any) -> Loaded:
        """Load all settings. `options` that are None count as not given."""
        from penstock.config import load

        given = {name: value for name, value in options.items() if value is not None}
        return load(options={**self.options, **given})

    def app_spec(self, given: str | None = None) -> str:
        """Name of the app: `given`, else from --app, the environment or the file."""
        for name in ("url", "namespace"):
            if name in self.options:
                raise click.UsageError(f"an app uses its own store: leave --{name} out")
        spec = given or self.load().config.app
        if not spec:
            raise click.UsageError(
                "no app: name one as MODULE:ATTRIBUTE, e.g. tasks:app, "
                "or set PENSTOCK_APP or `app` in penstock.toml"
            )
        return spec

    def open_app(self, given: str | None = None, *, tasks: bool = True) -> App:
        """Import the app and return it; with `tasks`, also the modules of its `include`."""
        from penstock.app.loading import load_app

        return load_app(self.app_spec(given), tasks=tasks)

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """Open the store that --url, --app or the settings name, and close it on exit.

        Without `create`, a missing SQLite file is an error: reading must not create an empty store.
        """
        if self._open is not None:
            yield self._open
            return
        store = self._store()
        path = getattr(store, "path", None)
        try:
            if path is not None and not create and not path.exists():
                raise CommandError(
                    f"there is no store at {store.url}: nothing was enqueued there yet; "
                    "name another store with --url or --app, or set PENSTOCK_URL"
                )
            yield store
        finally:
            store.close()

    @contextmanager
    def same_store(self) -> Iterator[None]:
        """Use one open store and one event loop in the whole block."""
        with asyncio.Runner() as runner, self.store() as store:
            self._open, self._runner = store, runner
            try:
                yield
            finally:
                self._open = self._runner = None

    def url(self) -> str:
        """The store's URL as it was given, including secrets."""
        return self.open_app(tasks=False).url if self.uses_app() else self.load().config.url

    def _store(self) -> Store:
        if self.uses_app():
            return self.open_app(tasks=False).store
        from penstock.stores.connect import connect
        from penstock.stores.encrypted import encrypted_with_config

        config = self.load().config
        return encrypted_with_config(connect(config.url, namespace=config.namespace), config)

    def uses_app(self) -> bool:
        """Whether the store is the store of the app, which is then imported.

        Options take precedence over the environment and the file, a URL over an app, and both over defaults.
        """
        if "url" in self.options:
            return False
        loaded = self.load()
        return bool(loaded.config.app) and ("app" in self.options or loaded.source("url") == "default")

    def run(
        self,
        act: Callable[[Inspector], Awaitable[T]],
        *,
        create: bool = False,
        audited: AuditedAct | None = None,
    ) -> T:
        """Call `act` with an inspector of the store; `create` as in `store`.

        `audited`: the entry of the audit log, which is written if `act` raises no error, or is interrupted.
        """
        from penstock.inspector import Inspector

        async def acting(store: Store) -> T:
            try:
                done = await act(Inspector(store))
            except asyncio.CancelledError:  # Ctrl-C: a part of it is done
                if audited is not None:
                    await audited.write(store, ended="interrupted")
                raise
            if audited is not None:
                await audited.write(store)
            return done

        return self.run_on_store(acting, create=create)

    def run_on_store(self, act: Callable[[Store], Awaitable[T]], *, create: bool = False) -> T:
        """Call `act` with the store; `create` as in `store`."""

        async def acting(store: Store) -> T:
            return await act(store)

        with self.store(create=create) as store:
            return asyncio.run(acting(store)) if self._runner is None else self._runner.run(acting(store))


class Command(click.Command):
    """A command with the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(shared_options())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors that name parameters of the API name the options instead."""
        try:
            return super().invoke(ctx)
        except (ConfigError, ArgumentError) as error:
            says = _with_option_names(str(error), ctx)
            if says == str(error):
                raise
            raise CommandError(says, code_of(error)) from error


_CALL = re.compile(r"\A(\S+\.using|enqueue_raw)\(\): ")
_PARAMETER = re.compile(r"(?<![\w-])([a-z_]+)=(?=(\s|\Z)?)")


def _with_option_names(message: str, ctx: click.Context) -> str:
    """`--run-at='soon'` for `tasks.send.using(): run_at='soon'`, if the command has that option."""
    options = {param.name: param.opts[0] for param in ctx.command.params if isinstance(param, click.Option)}
    if ctx.params.get("unique_for") is not None:
        options["unique"] = "--unique-for"

    def named(match: re.Match[str]) -> str:
        option = options.get(match[1])
        return match[0] if option is None else f"{option}{'' if match[2] is not None else '='}"

    return _PARAMETER.sub(named, _CALL.sub("", message))


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def shared_options() -> list[click.Parameter]:
    """--url, --app, --namespace, --json and --traceback, given before or after the name of the command."""
    return [
        _setting("--url", "url", "Store URL.  [default: sqlite:///jobs.db; env: PENSTOCK_URL]"),
        _setting("--app", "app", "App whose store to use, e.g. tasks:app.  [env: PENSTOCK_APP]"),
        _setting("--namespace", "namespace", "Namespace within the store.  [env: PENSTOCK_NAMESPACE]"),
        _switch("--json", "json", "Print one JSON document on stdout and nothing else."),
        _switch("--traceback", "traceback", "Print the traceback of an error."),
    ]


def _setting(option: str, name: str, says: str) -> click.Option:
    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.find_root().ensure_object(Session).options[name] = value

    metavar = "MODULE:ATTRIBUTE" if name == "app" else name.upper()
    # a name that no argument of a command has
    return click.Option(
        [option, f"shared_{name}"],
        help=says,
        metavar=metavar,
        expose_value=False,
        callback=remember,
        is_eager=True,
    )


def _switch(option: str, name: str, says: str) -> click.Option:
    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.find_root().ensure_object(Session), name, True)

    return click.Option(
        [option, f"shared_{name}"],
        help=says,
        is_flag=True,
        expose_value=False,
        callback=remember,
        is_eager=True,
    )


def limit_option(what: str, *, most: int = 1_000) -> Callable[[Any], Any]:
    """`--limit N` of a command that lists: at most `most`, 50 by default. `what`: the listed things."""
    return click.option(
        "--limit",
        "-n",
        metavar="N",
        type=click.IntRange(1, most),
        default=50,
        show_default=True,
        help=f"Maximum number of {what} to show.",
    )


class DefaultGroup(click.Group):
    """A group that runs its `default` command if no command is named."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "invoke_without_command": True})
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command before arguments that begin with no command."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


# ── entries of the audit log ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AuditedAct:
    """What a command does as an operator, e.g. `AuditedAct("queue.purge", ["mail"])`."""

    act: str
    to: Sequence[str]
    facts: Mapping[str, object] = field(default_factory=dict)

    async def write(self, store: Store, **more: str) -> None:
        """Write the entry, with more facts; several if it names many."""
        from penstock.inspector.audit import AuditLog

        facts = {name: "none" if value is None else str(value) for name, value in self.facts.items()} | more
        await AuditLog(store).write(acting_user(), self.act, self.to, facts=facts)


def acting_user() -> str:
    """`cli:USER@HOST`; the user's number where it has no name."""
    import getpass
    import os
    import platform

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"cli:{user}@{platform.node()}"
