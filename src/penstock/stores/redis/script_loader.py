"""Assemble each Lua script from its own file and what it needs of the shared parts in `scripts/lib/`.

A line `-- include: clock states queue` is replaced by these parts, in this order. A part may include other
parts. The names of parts included inside of a function are local to that function, and are defined when it is
called: so a script pays for rarely needed parts only when it uses them.

Of a part only those statements are included that define a name which the script uses, directly or in another
included statement, and those that define none. So a script does not define functions that it never calls,
which would cost time with each call. The constants of parts are written as their values. Both keep scripts
within Lua's limits: a function has at most 200 local names, and 60 names of the functions around it.

Parts are included in the order of `ORDER`, each after the parts that its header names (`-- needs: …`);
`tests/stores/redis/test_scripts.py` checks this, and that no assembled script uses an undefined name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from penstock.stores.redis.wire.calls import Script
from penstock.stores.statements import Statements

#: All shared parts, in the order in which scripts include them.
ORDER = (
    "size_check",
    "clock",
    "states",
    "dispatch",
    "queue",
    "sound",
    "limits",
    "profiles",
    "leases",
    "record",
    "partitions",
    "places",
    "aside",
    "batches",
    "insert",
    "one_job",
    "listing",
    "periodic",
    "promote_batches",
    "steps",
    "signals",
)
INCLUDE = re.compile(r"^ *-- include: (.+)\n", re.MULTILINE)
NEEDS = re.compile(r"^-- needs: (.+)$", re.MULTILINE)
#: A statement of a part begins at the left margin; only these words continue or end one there.
_BEGIN = re.compile(r"^(?=[^ })])(?!end\b|else|until\b)", re.MULTILINE)
_STRING = r"'(?:\\.|[^'\\\n])*'"
#: Constants: names in capitals, and a number or a text for each.
_VALUE = rf"(?:-?\d+(?:\.\d+)?|{_STRING})"
_A_VALUE = re.compile(_VALUE)
_CONSTANTS = re.compile(rf"local ([A-Z_]+(?:, [A-Z_]+)*) = ({_VALUE}(?:, {_VALUE})*)\s*")
_LOCALS = re.compile(r"local (?:function )?([\w, ]+)|function (\w+)")
#: The functions that a `do` block defines for a name that is declared before it.
_IN_BLOCK = re.compile(r"^  function (\w+)", re.MULTILINE)
#: Texts, and words: those that follow a dot are fields, the others may be names of locals.
_WORD = re.compile(rf"{_STRING}|\.?[A-Za-z_]\w*")
#: Words in capitals that may be constants: no fields, no keys of tables, and no texts such as commands.
_CAPITALS = re.compile(r"(?<![.'\w])[A-Z][A-Z_]+\b(?! = )")


class Statement:
    """A statement at the left margin of a part, or a whole script. `defines`: the names that it defines.

    Its text is looked into when a script needs it: each script needs less than half of the statements.
    """

    def __init__(
        self, text: str, constants: Mapping[str, str], defines: frozenset[str] = frozenset()
    ) -> None:
        self._text = text
        self._constants = constants
        self.defines = defines

    @cached_property
    def _pieces(self) -> list[str]:
        return INCLUDE.split(with_values(self._text, self._constants))

    @property
    def texts(self) -> list[str]:
        """Its text, in pieces; between them are its includes."""
        return self._pieces[::2]

    @property
    def includes(self) -> list[list[str]]:
        """Lists of parts."""
        return [parts.split() for parts in self._pieces[1::2]]

    @cached_property
    def uses(self) -> set[str]:
        """The words in it that may be names."""
        return {word for text in self.texts for word in _WORD.findall(text) if word[0] not in ".'"}


class Part(NamedTuple):
    """A part: its statements, and the values of its constants and of those of the parts that it needs."""

    statements: list[Statement]
    constants: dict[str, str]

    @classmethod
    def of(cls, text: str, constants: Mapping[str, str]) -> Part:
        text, known = without_comments(text), dict(constants)
        begins = [match.start() for match in _BEGIN.finditer(text)]
        statements: list[Statement] = []
        for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
            statement = text[begin:end]
            if (found := _CONSTANTS.fullmatch(statement)) is None:
                statements.append(Statement(statement, known, _defined(statement)))
                continue
            for name, value in zip(found[1].split(", "), _A_VALUE.findall(found[2]), strict=True):
                known[name] = f"({value})" if value[0] == "-" else value
        return cls(statements, known)


def _defined(statement: str) -> frozenset[str]:
    if statement.startswith("do\n"):
        return frozenset(_IN_BLOCK.findall(statement))
    found = _LOCALS.match(statement)
    return frozenset() if found is None else frozenset((found[1] or found[2]).replace(",", " ").split())


def without_comments(text: str) -> str:
    """Remove comments, because Redis would keep them in memory with the script, and empty lines."""
    lines = []
    for line in text.splitlines():
        bare = line.lstrip()
        if bare.startswith("-- include: "):
            lines.append(line)
        elif bare and not bare.startswith("--"):
            lines.append(line.partition(" -- ")[0].rstrip())
    return "\n".join(lines) + "\n"


def with_values(text: str, constants: Mapping[str, str]) -> str:
    """Write constants as their values."""
    return _CAPITALS.sub(lambda found: constants.get(found[0], found[0]), text)


class Scripts(dict[str, Script]):
    """All scripts by name. Each is assembled at its first use: all together take about 50 ms."""

    def __init__(self) -> None:
        super().__init__()
        self._files = Statements("penstock.stores.redis", "scripts", ".lua")
        self._texts = Statements("penstock.stores.redis", "scripts/lib", ".lua")
        self._parts: dict[str, Part] = {}

    def __missing__(self, name: str) -> Script:
        text = without_comments(self._files[name])
        parts = " ".join(INCLUDE.findall(text)).split()
        whole = Statement(text, self._constants_of(parts))
        script = self[name] = Script(name, "".join(self._lines(whole, self._needed(whole))))
        return script

    def names(self) -> list[str]:
        """Return the names of all scripts, also of those that are not assembled yet."""
        return sorted(key.partition(".")[0] for key in self._files)

    def _part(self, name: str) -> Part:
        part = self._parts.get(name)
        if part is None:
            text = self._texts[name]
            needs = " ".join(NEEDS.findall(text)).split()
            # several threads may do this at once: statements are known by identity, so the first part stays
            part = self._parts.setdefault(name, Part.of(text, self._constants_of(needs)))
        return part

    def _constants_of(self, parts: Iterable[str]) -> dict[str, str]:
        return {name: value for part in parts for name, value in self._part(part).constants.items()}

    def _included(self, statement: Statement) -> Iterator[Statement]:
        for parts in statement.includes:
            for part in parts:
                yield from self._part(part).statements

    def _needed(self, script: Statement) -> set[Statement]:
        """Return the statements of parts that the script needs."""
        used, needed, left = set(script.uses), set[Statement](), list(self._included(script))
        more = True
        while more:
            more, others = False, list[Statement]()
            for one in left:
                if one.defines and used.isdisjoint(one.defines):
                    others.append(one)
                elif one not in needed:
                    more = True
                    needed.add(one)
                    used |= one.uses
                    others += self._included(one)
            left = others
        return needed

    def _lines(self, statement: Statement, needed: set[Statement]) -> Iterator[str]:
        yield statement.texts[0]
        for parts, text in zip(statement.includes, statement.texts[1:], strict=True):
            for part in parts:
                for one in self._part(part).statements:
                    if one in needed:
                        yield from self._lines(one, needed)
            yield text


SCRIPTS = Scripts()
