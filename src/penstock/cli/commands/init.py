"""`penstock init`: write a small project that runs at once."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from penstock.cli.faults import CommandError
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, say

#: The files of the project are stored with this suffix, so that they are no modules of Penstock.
_SUFFIX = ".txt"


@click.command("init", cls=Command, short_help="Write a small project: tasks, web app, tests, Dockerfile.")
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Write a small project into DIR (default: the working directory).

    The project has tasks, a web app, tests, a Dockerfile and penstock.toml, and runs at once. Existing files
    are never overwritten: if one of the project's files exists, nothing is written.
    """
    files = {Path(name): text for name, text in _project()}
    existing = [str(name) for name in files if (directory / name).exists()]
    if existing:
        raise CommandError(
            f"{directory} has {', '.join(existing)} already: nothing was written; name an empty directory"
        )
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    if Session.current().json:
        emit({"directory": str(directory), "files": [name.as_posix() for name in files]})
        return
    for name in files:
        say(str(directory / name))
    say()
    enter = "" if directory == Path() else f"cd {directory} && "
    say(f"Run it:   {enter}penstock dev      # needs pip install 'penstock[web]'")
    say("          python -m shop.web")
    say("Test it:  python -m pytest")


def _project() -> Iterator[tuple[str, str]]:
    """The project's files: path and text."""
    yield from _files(resources.files("penstock.cli") / "project", "")


def _files(folder: Traversable, inside: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{inside}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield inside + entry.name.removesuffix(_SUFFIX), entry.read_text("utf-8")
