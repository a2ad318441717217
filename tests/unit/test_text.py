"""Untrusted text, made safe to print."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from penstock.core.text import block, json_escaped, one_line

BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def controls():
    """Every character that a terminal acts on, or that changes the order of what is read."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in BIDI:
            yield char
    yield from "\u200e\u200f\u061c"


@pytest.mark.parametrize("char", ["\x1b", "\x00", "\x7f", "\x9b", "\n", "\t", "\u202e", "\u2028", "\ud800"])
def test_a_control_character_is_shown_as_its_escape(char):
    assert one_line(f"a{char}b") == f"a{char.encode('unicode_escape').decode()}b"


def test_no_control_character_is_forgotten():
    text = "".join(controls())
    assert one_line(text).isascii()
    assert block(text).replace("\n", "").replace("\t", "").isascii()
    assert len(block(text).splitlines()) == 2


@pytest.mark.parametrize("text", ["", "plain", "naïve", "日本語", "👩‍👩‍👧", "שלום", "a b"])
def test_all_else_stays_as_it_is(text):
    assert one_line(text) == block(text) == text


def test_a_block_keeps_its_lines_and_tabs():
    assert block("a\n\tb\r\n") == "a\n\tb\\r\n"


def test_long_text_is_cut_and_says_how_much_is_missing():
    assert one_line("x" * 1_000, 10) == "xxxxxxxxxx… (990 more characters)"
    assert one_line("\x1b" * 20, 10) == "\\x1b" * 10 + "… (10 more characters)"
    assert block("x" * 10, 10) == "x" * 10


def test_escaped_json_is_the_same_json():
    document = {"a\u202e": "".join(c for c in controls() if not "\ud800" <= c <= "\udfff"), "é": "日👩"}
    text = json_escaped(json.dumps(document, ensure_ascii=False))
    assert json.loads(text) == document
    assert one_line(text) == text
    assert "é" in text


def test_json_for_a_terminal_that_knows_ascii_only_is_the_same_json():
    document = {"é": "日👩\u202e"}
    text = json_escaped(json.dumps(document, ensure_ascii=False), ascii=True)
    assert text.isascii()
    assert json.loads(text) == document
