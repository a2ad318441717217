"""Each Lua script is complete: declared names, parts in the stated order, a full header."""

from __future__ import annotations

import re
from importlib import resources
from itertools import takewhile

import pytest

from penstock.stores.redis.script_loader import INCLUDE, ORDER, SCRIPTS
from tests.stores.redis.lua_names import names_of

FOLDER = resources.files("penstock.stores.redis") / "scripts"
FILES = {
    e.name.removesuffix(".lua"): e.read_text("utf-8") for e in FOLDER.iterdir() if e.name.endswith(".lua")
}
PARTS = {e.name.removesuffix(".lua"): e.read_text("utf-8") for e in (FOLDER / "lib").iterdir()}
#: What Redis and its Lua 5.1 define.
GLOBALS = frozenset(
    [
        "KEYS",
        "ARGV",
        "redis",
        "struct",
        "cmsgpack",
        "bit",
        "string",
        "table",
        "math",
        "pairs",
        "ipairs",
        "tonumber",
        "tostring",
        "type",
        "unpack",
        "pcall",
        "error",
    ]
)
#: A state or an answer that stands there as a bare number or character.
BARE = re.compile(
    r"state\w*\s*[=~]=\s*\d|state\w*\s*[<>]=?\s*\d|[=~]=\s*'[a-z]'|\bcode\w*\s*=\s*'|state = \d"
)


def free(script: str) -> dict[str, int]:
    return {name: line for name, line in names_of(script).free.items() if name not in GLOBALS}


def needs(part: str) -> list[str]:
    found = re.search(r"^-- needs: (.+)$", PARTS[part], re.MULTILINE)
    return found[1].split() if found else []


def included(text: str) -> list[list[str]]:
    return [line[1].split() for line in INCLUDE.finditer(text)]


def in_order(text: str) -> list[str]:
    """The parts of a script in the order in which they stand there, those that parts include too."""
    found: list[str] = []
    for parts in included(text):
        for part in parts:
            found += [part, *in_order(PARTS[part])]
    return found


@pytest.mark.parametrize("name", SCRIPTS.names())
def test_a_script_uses_no_name_that_nobody_defines(name: str) -> None:
    assert free(SCRIPTS[name].text) == {}


@pytest.mark.parametrize("name", SCRIPTS.names())
def test_no_function_has_more_names_than_lua_allows(name: str) -> None:
    names = names_of(SCRIPTS[name].text)
    assert names.most_locals <= 200
    assert names.most_outer <= 60


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_script_includes_what_its_parts_need_before_them(name: str) -> None:
    found = in_order(FILES[name])
    assert len(found) == len(set(found)), "a part is included twice"
    for at, part in enumerate(found):
        assert set(needs(part)) <= set(found[:at]), f"{part} needs {needs(part)}"


def test_parts_are_included_in_the_stated_order() -> None:
    assert sorted(ORDER) == sorted(PARTS)
    place = {part: n for n, part in enumerate(ORDER)}
    for text in (*FILES.values(), *PARTS.values()):
        for parts in included(text):
            assert parts == sorted(parts, key=place.__getitem__)
    for part in PARTS:
        assert needs(part) == sorted(needs(part), key=place.__getitem__)
        assert all(place[other] < place[part] for other in needs(part)), part


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_script_says_in_its_header_what_it_takes_and_answers(name: str) -> None:
    header = "".join(takewhile(lambda line: line.startswith("-- "), FILES[name].splitlines(keepends=True)))
    assert re.search(r"^-- KEYS: .*ARGV: clock.*Returns ", header, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", sorted({**FILES, **PARTS}))
def test_states_and_answers_have_names(name: str) -> None:
    text = {**FILES, **PARTS}[name]
    code = [line.partition("--")[0] for line in text.splitlines()]
    assert [line for line in code if BARE.search(line)] == []


# ── the reader of Lua itself ──


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("local a = b", {"b": 1}),
        ("local a = a", {"a": 1}),
        ("local a\nlocal function f() return a + f() end\nreturn f(c)", {"c": 3}),
        ("for i, v in pairs(t) do local x = i end\nreturn i, x", {"pairs": 1, "t": 1, "i": 2, "x": 2}),
        ("for i = 1, n do local q = i end", {"n": 1}),
        ("return ({a = 1, [b] = c, d; 'e'}).f.g:h(i)['j'].k", {"b": 1, "c": 1, "d": 1, "i": 1}),
        ("if a then local b elseif b then return c else d = 1 end", {"a": 1, "b": 1, "c": 1, "d": 1}),
        ("repeat local a = 1 until a > b", {"b": 1}),
        ("while not a do break end -- c\nreturn -#d .. 'e' .. [[f]]", {"a": 1, "d": 2}),
        ("function a.b:c(d, ...) return d, ... end", {"a": 1}),
        ("local f = function(a) return function() return a, b end end", {"b": 1}),
        ("local a; a = 1; b, a = a, 2", {"b": 1}),
        ("f'x'{y = z}", {"f": 1, "z": 1}),
        ("do local a = 1 end return a", {"a": 1}),
    ],
)
def test_free_names_are_those_that_no_scope_declares(script: str, found: dict[str, int]) -> None:
    assert names_of(script).free == found


@pytest.mark.parametrize(
    ("script", "most_locals", "most_outer"),
    [
        ("local a, b do local c end do local d, e end", 4, 0),
        ("local a local function f(b) local c return function() return a + b + c end end", 2, 3),
        ("for i = 1, 2 do local a end for k, v in x do end", 5, 0),
        ("local a, b local a", 3, 0),
    ],
)
def test_names_are_counted_as_lua_counts_them(script: str, most_locals: int, most_outer: int) -> None:
    assert names_of(script)[1:] == (most_locals, most_outer)


@pytest.mark.parametrize("script", ["local = 1", "if a then", "return )", "a $ b", "end"])
def test_what_is_no_lua_is_refused(script: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        names_of(script)
