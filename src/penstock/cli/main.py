"""The command `penstock`: imports and runs a subcommand, turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from penstock.cli.faults import Exit, complain
from penstock.cli.session import Session, shared_options
from penstock.core.text import print_anything

#: Commands in the order of the help. Each module has its command under the name `command`.
COMMANDS = (
    *("init", "dev", "demo", "verify", "worker", "serve", "enqueue"),
    *("jobs", "bulk", "queues", "batches", "flows", "periodic", "workers"),
    *("top", "stats", "errors", "tokens", "audit"),
    *("config", "doctor", "keygen", "completion"),
)


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(f"penstock.cli.commands.{name}") is not None


class Root(click.Group):
    """Imports a command only when it is used: `penstock --version` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if _is_there(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not _is_there(cmd_name):
            return None
        command: click.Command = importlib.import_module(f"penstock.cli.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from penstock.core.peer_words import hint  # only for this message

            near = hint("command", name, self.list_commands(ctx))
            ctx.fail(
                f"no command {name!r}{near or '; the commands are ' + ', '.join(self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its code; `standalone_mode=False` has the same meaning as in click."""
        if os.environ.get("NO_COLOR"):  # https://no-color.org
            extra.setdefault("color", False)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        prepare_streams()
        session = Session()
        try:
            code = super().main(args, prog_name, complete_var, False, **{"obj": session, **extra})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = Exit.USAGE
        except Exception as error:  # noqa: BLE001  # boundary: every error becomes a printable message and an exit code
            # options after an invalid one are not parsed
            as_json = session.json or "--json" in (sys.argv[1:] if args is None else args)
            code = complain(error, json=as_json, whole=session.traceback)
        close_streams()
        sys.exit(code if isinstance(code, int) else Exit.OK)


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 success; 1 failed or refused; 2 usage error; 3 not found; 4 store unavailable.",
)
@click.version_option(package_name="penstock", message="penstock %(version)s")
def cli() -> None:
    """Background jobs for Python that do not get lost."""


cli.params.extend(shared_options())


def main() -> None:
    """The entry point of the command `penstock`."""
    cli()


# ── the standard streams ─────────────────────────────────────────────────────────────────────────


def prepare_streams() -> None:
    """Make stdout and stderr accept all characters, and open closed streams on the null device."""
    _open_closed_ones()
    print_anything()


def _open_closed_ones() -> None:
    """Open closed standard streams, so that no other file or socket gets the number of a stream."""
    for stream in (0, 1, 2):
        try:
            os.fstat(stream)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(nowhere, True)


def close_streams() -> None:
    """Flush stdout and stderr. After an error, discard the rest, or Python would try again at exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
