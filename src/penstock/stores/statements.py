"""The files of a store that are not Python: SQL statements, Lua scripts, and migrations of tables.

`importlib.resources` reads them, too, and takes 0.4 MB of memory, so it is used for a zip archive only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import get_data

import msgspec

from penstock.core.errors import StoreCorrupt, StoreTooNew


def file_names(package: str, folder: str) -> list[str]:
    """The sorted names of what lies in a folder of this package."""
    path = os.path.join(import_module(package).__path__[0], *folder.split("/"))
    if os.path.isdir(path):
        return sorted(os.listdir(path))
    from importlib import resources

    return sorted(entry.name for entry in resources.files(package).joinpath(folder).iterdir())


def read_text(package: str, path: str) -> str:
    """The text of a file of this package."""
    data = get_data(package, path)
    if data is None:
        raise FileNotFoundError(f"{path} of {package} cannot be read: its loader reads no data")
    return data.decode().replace("\r\n", "\n")


# ── statements and scripts ───────────────────────────────────────────────────────────────────────

# One file per verb, named as the verb. A SQL file holds one or more statements; each begins with a line
# `-- name: …`. The text before the first name is the file's header, for readers. A Lua file is one script.
# `Statements("penstock.stores.sql", "sqlite")["fetch.lease"]` is the statement `lease` of `fetch.sql`.
# With `words`, a statement may contain a constant as `{name}`, which is replaced when the file is read.


_NAME = re.compile(r"^-- name: *([a-z_]+) *$", re.MULTILINE)
_WORD = re.compile(r"\{([a-z_]+)\}")
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


class Statements:
    """The statements of one folder, by `file.name`. Each file is read once, at its first use."""

    def __init__(
        self, package: str, folder: str, suffix: str = ".sql", *, words: Mapping[str, str] | None = None
    ) -> None:
        self._package, self._folder = package, folder
        self._suffix = suffix
        self._words = words
        self._files: dict[str, dict[str, str]] = {}

    def __getitem__(self, key: str) -> str:
        file, _, name = key.partition(".")
        try:
            return self._read(file)[name or file]
        except KeyError:
            raise KeyError(f"no statement {name or file!r} in {file}{self._suffix}") from None

    def __iter__(self) -> Iterator[str]:
        """The keys of all statements, in the order of the files' names."""
        for name in file_names(self._package, self._folder):
            if name.endswith(self._suffix):
                file = name.removesuffix(self._suffix)
                yield from (f"{file}.{statement}" for statement in self._read(file))

    def _read(self, file: str) -> dict[str, str]:
        found = self._files.get(file)
        if found is None:
            text = read_text(self._package, f"{self._folder}/{file}{self._suffix}")
            if self._words is not None:
                text = _expanded(text, self._words, file)
            found = self._files[file] = _split(file, text)
        return found


def _expanded(text: str, words: Mapping[str, str], file: str) -> str:
    """Return the text with each `{name}` replaced by its constant."""
    try:
        return _WORD.sub(lambda match: words[match[1]], text)
    except KeyError as error:
        raise ValueError(f"{file}: unknown constant {{{error.args[0]}}}") from None


def _split(file: str, text: str) -> dict[str, str]:
    names = list(_NAME.finditer(text))
    if not names:
        return {file: text}
    ends = [m.start() for m in names[1:]] + [len(text)]
    return {m[1]: _bare(text[m.end() : end]) for m, end in zip(names, ends, strict=True)}


def _bare(statement: str) -> str:
    """Return the statement without comment lines, which a server would log and hash with every call."""
    return _COMMENT.sub("", statement).strip().removesuffix(";")


# ── migrations ───────────────────────────────────────────────────────────────────────────────────

# Numbered .sql files, each applied once, in order. A store keeps the number of the last applied file in a
# table of its own: the database may also hold the user's tables, so its global version fields are not ours.
# All missing files are applied in one transaction. Files are named `0001_what_it_does.sql`, without gaps. The
# statements of a released file are never changed.


_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql\Z")


class Migration(msgspec.Struct, frozen=True):
    """One migration: its number (from 1), its name, and its statements."""

    number: int
    name: str
    statements: tuple[str, ...]


def migrations(package: str, folder: str = "migrations") -> list[Migration]:
    """Return all migrations of a store, in order."""
    found = []
    for name in file_names(package, folder):
        match = _FILE.match(name)
        if match:
            text = read_text(package, f"{folder}/{name}")
            found.append(Migration(int(match[1]), match[2], _statements(text)))
    found.sort(key=lambda m: m.number)
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered 1 … {len(found)} without gaps")
    return found


def missing(known: list[Migration], version: int, where: str) -> list[Migration]:
    """Return the migrations that a store of this version (0: empty) still needs.

    Raises StoreTooNew for a store of a later version, which this Penstock cannot use correctly.
    """
    if version > len(known):
        raise StoreTooNew(
            f"{where} has the store version {version}, this Penstock knows versions up to {len(known)}: "
            "upgrade penstock here, or use another file"
        )
    if version < 0:
        raise StoreCorrupt(f"{where} has the impossible store version {version}")
    return known[version:]


def _statements(text: str) -> tuple[str, ...]:
    """Split a file into statements. Each ends with `;` at the end of a line; comments are whole lines."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    parts = re.split(r";\s*$", "\n".join(lines), flags=re.MULTILINE)
    return tuple(part.strip() for part in parts if part.strip())
