"""Each Lua script is complete: declared names, parts in the stated order, a full header."""

from __future__ import annotations

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from itertools import takewhile

import pytest

from penstock.stores.redis.script_loader import INCLUDE, ORDER, SCRIPTS, Part, Scripts, Statement, with_values
from tests.cases import each
from tests.stores.redis.lua_names import names_of, tokens

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


@each("name", SCRIPTS.names())
def test_a_script_uses_no_name_that_nobody_defines(name: str) -> None:
    assert free(SCRIPTS[name].text) == {}


@each("name", SCRIPTS.names())
def test_no_function_has_more_names_than_lua_allows(name: str) -> None:
    names = names_of(SCRIPTS[name].text)
    assert names.most_locals <= 200
    assert names.most_outer <= 60


def constants_in(text: str) -> dict[str, str]:
    return Part.of(text, {}).constants


def test_a_constant_of_the_parts_has_one_value_and_no_script_uses_its_name_for_another() -> None:
    values: dict[str, set[str]] = {}
    for text in PARTS.values():
        for name, value in constants_in(text).items():
            values.setdefault(name, set()).add(value)
    assert {name: found for name, found in values.items() if len(found) > 1} == {}
    for file, text in FILES.items():
        parts = [PARTS[part] for part in in_order(text)]
        for part in parts:
            again = set(constants_in(text)) & set(constants_in(part))
            assert again == set(), file


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_part_is_split_into_whole_statements(part: str) -> None:
    statements = Part.of(PARTS[part], {}).statements
    for statement in statements:
        names_of("\n".join(statement.texts))  # raises ValueError for what is no Lua
    functions = [sum(token.text == "function" for token in tokens(PARTS[part]))]
    assert functions == [
        sum(token.text == "function" for one in statements for token in tokens("\n".join(one.texts)))
    ]


SMALL = """
local LEAST, NAME = -1, 'it\\'s LEAST'    -- constants
local size, bytes
local busy = {}

local function helper(n)
  return n + LEAST
end

do
  local function inner() return helper(1) end

  function size() return inner() end
end

local function other()
  return busy
end

redis.call('PING')
"""


def test_a_part_gives_its_statements_with_the_names_they_define_and_its_constants() -> None:
    part = Part.of(SMALL, {})
    assert part.constants == {"LEAST": "(-1)", "NAME": "'it\\'s LEAST'"}
    assert [sorted(one.defines) for one in part.statements] == [
        ["bytes", "size"],
        ["busy"],
        ["helper"],
        ["size"],
        ["other"],
        [],
    ]
    assert "helper" in part.statements[3].uses
    assert "(-1)" in part.statements[2].texts[0]


def test_a_field_and_a_text_are_no_use_of_a_name() -> None:
    assert Statement("return job.place .. 'order' .. name", {}).uses == {"return", "job", "name"}


def test_a_constant_is_written_as_its_value_but_not_as_a_field_a_key_or_in_a_text() -> None:
    text = "t = {MOST = MOST}; f(t.MOST, 'MOST', MOST == 1)"
    assert with_values(text, {"MOST": "9"}) == "t = {MOST = 9}; f(t.MOST, 'MOST', 9 == 1)"


def test_a_script_gets_only_what_it_uses_of_its_parts() -> None:
    text = SCRIPTS["pass_on"].text
    assert "local function wake(" in text
    assert "local function push_ready(" not in text  # of the same part
    assert "function put(" not in text
    assert SCRIPTS["cancel"].text.count("function put(") == 1


@each("name", sorted(FILES))
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


@each("name", sorted(FILES))
def test_a_script_says_in_its_header_what_it_takes_and_answers(name: str) -> None:
    header = "".join(takewhile(lambda line: line.startswith("-- "), FILES[name].splitlines(keepends=True)))
    assert re.search(r"^-- KEYS: .*ARGV: clock.*Returns ", header, re.MULTILINE | re.DOTALL)


@each("name", sorted({**FILES, **PARTS}))
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


def test_threads_that_assemble_a_script_at_once_get_the_same() -> None:
    """Statements are known by identity: a part that two threads have made twice would lose some of them."""
    threads, interval = 8, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            scripts, start = Scripts(), threading.Barrier(threads)

            def assemble(scripts: Scripts = scripts, start: threading.Barrier = start) -> str:
                start.wait()
                return scripts["enqueue"].text

            with ThreadPoolExecutor(threads) as pool:
                made = [one.result() for one in [pool.submit(assemble) for _ in range(threads)]]
            assert set(made) == {SCRIPTS["enqueue"].text}
    finally:
        sys.setswitchinterval(interval)
