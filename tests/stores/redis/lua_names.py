"""Reads the names of a Lua 5.1 script: undeclared names, and the number of names per function.

A name is undeclared if no `local`, parameter or loop variable declares it before its use: Lua would look it
up among the globals. Lua refuses a function with more than 200 local names at once, or with more than 60
names of outer functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Names", "names_of", "tokens"]

KEYWORDS = frozenset(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    ]
)
#: What may stand between two operands.
_BINARY = frozenset({"+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", ">=", "and", "or"})
_UNARY = frozenset({"-", "#", "not"})
_TOKEN = re.compile(
    r"""(?P<space>\s+|--\[\[.*?\]\]|--[^\n]*)
      | (?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\[\[.*?\]\])
      | (?P<number>0x[0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)


#: A loop has three names of its own, which no script can use.
_HIDDEN = ("(a)", "(b)", "(c)")


class Token(NamedTuple):
    kind: str  # string, number, name, keyword, sign, end
    text: str
    line: int


def tokens(script: str) -> Iterator[Token]:
    """The tokens of a script, without comments; raises ValueError for what is none."""
    at, line = 0, 1
    while at < len(script):
        found = _TOKEN.match(script, at)
        if found is None or found.lastgroup is None:
            raise ValueError(f"line {line}: no Lua: {script[at : at + 20]!r}")
        kind, text = found.lastgroup, found[0]
        if kind != "space":
            yield Token("keyword" if kind == "name" and text in KEYWORDS else kind, text, line)
        line += text.count("\n")
        at = found.end()


class Names(NamedTuple):
    free: dict[str, int]  # by name the line where it is used first
    most_locals: int  # of one function, at once
    most_outer: int  # of one function, from those around it


def names_of(script: str) -> Names:
    reader = _Reader(list(tokens(script)))
    reader.chunk()
    return Names(reader.free, reader.most_locals, reader.most_outer)


class _Scope(NamedTuple):
    names: set[str]
    function: _Function


class _Function:
    """One function of the script, or the script itself."""

    def __init__(self) -> None:
        self.locals = 0
        self.outer: set[tuple[int, str]] = set()


class _Reader:
    """Read a script statement by statement, with the names that are declared at each point."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = [*found, Token("end", "", found[-1].line if found else 1)]
        self._at = 0
        self._functions = [_Function()]
        self._scopes: list[_Scope] = []
        self.free: dict[str, int] = {}
        self.most_locals = 0
        self.most_outer = 0

    def chunk(self) -> None:
        self._block()
        if self._next.kind != "end":
            raise self._wrong("the end")

    # ── tokens ──

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _wrong(self, wanted: str) -> ValueError:
        return ValueError(f"line {self._next.line}: {self._next.text!r} where {wanted} should stand")

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _accept(self, *texts: str) -> bool:
        if self._next.kind in ("keyword", "sign") and self._next.text in texts:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._wrong(repr(text))

    def _name(self) -> str:
        if self._next.kind != "name":
            raise self._wrong("a name")
        return self._take().text

    # ── names ──

    def _declare(self, *names: str) -> None:
        self._scopes[-1].names.update(names)
        function = self._functions[-1]
        function.locals += len(names)
        self.most_locals = max(self.most_locals, function.locals)

    def _use(self, name: str, line: int) -> None:
        at = next((n for n in reversed(range(len(self._scopes))) if name in self._scopes[n].names), None)
        if at is None:
            self.free.setdefault(name, line)
            return
        owner = self._functions.index(self._scopes[at].function)
        for function in self._functions[owner + 1 :]:
            function.outer.add((at, name))
            self.most_outer = max(self.most_outer, len(function.outer))

    def _enter(self) -> int:
        """Open a scope; how many locals its function has so far."""
        self._scopes.append(_Scope(set(), self._functions[-1]))
        return self._functions[-1].locals

    def _leave(self, before: int) -> None:
        self._scopes.pop()
        self._functions[-1].locals = before

    # ── statements ──

    def _block(self, *declared: str) -> None:
        before = self._enter()
        self._declare(*declared)
        self._statements()
        self._leave(before)

    def _statements(self) -> None:
        while self._next.kind != "end" and self._next.text not in ("end", "else", "elseif", "until"):
            self._statement()
            self._accept(";")

    def _statement(self) -> None:
        if self._next.kind != "keyword":
            return self._expression_statement()
        match self._take().text:
            case "local":
                self._local()
            case "function":
                self._use(self._name(), self._next.line)
                while self._accept(".", ":"):
                    self._name()
                self._function_body()
            case "if":
                self._if()
            case "while":
                self._expression()
                self._expect("do")
                self._block()
                self._expect("end")
            case "for":
                self._for()
            case "repeat":
                before = self._enter()
                self._statements()
                self._expect("until")
                self._expression()  # it sees what the block has declared
                self._leave(before)
            case "do":
                self._block()
                self._expect("end")
            case "return":
                if self._next.kind != "end" and self._next.text not in (
                    "end",
                    "else",
                    "elseif",
                    "until",
                    ";",
                ):
                    self._expressions()
            case "break":
                pass
            case other:
                raise ValueError(f"line {self._next.line}: a statement begins with {other!r}")

    def _expression_statement(self) -> None:
        self._suffixed()
        while self._accept(","):
            self._suffixed()
        if self._accept("="):
            self._expressions()

    def _local(self) -> None:
        if self._accept("function"):
            self._declare(self._name())
            return self._function_body()
        names = [self._name()]
        while self._accept(","):
            names.append(self._name())
        if self._accept("="):
            self._expressions()
        self._declare(*names)

    def _if(self) -> None:
        self._expression()
        self._expect("then")
        self._block()
        while self._accept("elseif"):
            self._expression()
            self._expect("then")
            self._block()
        if self._accept("else"):
            self._block()
        self._expect("end")

    def _for(self) -> None:
        names = [self._name()]
        while self._accept(","):
            names.append(self._name())
        if not self._accept("=", "in"):
            raise self._wrong("'=' or 'in'")
        self._expressions()
        self._expect("do")
        self._block(*_HIDDEN, *names)
        self._expect("end")

    def _function_body(self) -> None:
        self._expect("(")
        names = []
        while not self._accept(")"):
            if not self._accept("..."):
                names.append(self._name())
            self._accept(",")
        self._functions.append(_Function())
        self._block(*names)
        self._expect("end")
        self._functions.pop()

    # ── expressions ──

    def _expressions(self) -> None:
        self._expression()
        while self._accept(","):
            self._expression()

    def _expression(self) -> None:
        while self._accept(*_UNARY):
            pass
        self._operand()
        if self._accept(*_BINARY):
            self._expression()

    def _operand(self) -> None:
        if self._next.kind in ("number", "string"):
            self._take()
        elif self._accept("nil", "true", "false", "..."):
            pass
        elif self._accept("function"):
            self._function_body()
        elif self._next.text == "{":
            self._table()
        else:
            self._suffixed()

    def _suffixed(self) -> None:
        if self._accept("("):
            self._expression()
            self._expect(")")
        else:
            line = self._next.line
            self._use(self._name(), line)
        while True:
            if self._accept("."):
                self._name()
            elif self._accept("["):
                self._expression()
                self._expect("]")
            elif self._accept(":"):
                self._name()
                self._arguments()
            elif self._next.text in ("(", "{") or self._next.kind == "string":
                self._arguments()
            else:
                return

    def _arguments(self) -> None:
        if self._next.kind == "string":
            self._take()
        elif self._next.text == "{":
            self._table()
        else:
            self._expect("(")
            if not self._accept(")"):
                self._expressions()
                self._expect(")")

    def _table(self) -> None:
        self._expect("{")
        while not self._accept("}"):
            if self._accept("["):
                self._expression()
                self._expect("]")
                self._expect("=")
            elif self._next.kind == "name" and self._tokens[self._at + 1].text == "=":
                self._name()
                self._expect("=")
            self._expression()
            self._accept(",", ";")
