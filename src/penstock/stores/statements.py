"""Load the SQL statements and Lua scripts of a store: one file per verb, named as the verb.

A SQL file holds one or more statements; each begins with a line `-- name: …`. The text before the first name
is the file's header, for readers. A Lua file is one script, named as the file.
`Statements("penstock.stores.sqlite", "queries")["fetch.lease"]` is the statement `lease` of `fetch.sql`.
With `words`, a statement may contain a constant as `{name}`, which is replaced when the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.stores.package_files import file_names, read_text

__all__ = ["Statements"]

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
