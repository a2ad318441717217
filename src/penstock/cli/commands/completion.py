"""`penstock completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from penstock.cli.faults import CommandError
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, say_lines


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash: echo 'eval "$(penstock completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(penstock completion zsh)"' >> ~/.zshrc
    fish: penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise CommandError(f"this version of click has no completion for {shell}")
    root = click.get_current_context().find_root().command
    script = made(root, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    if Session.current().json:
        emit({"shell": shell, "script": script})
    else:
        say_lines(script)
