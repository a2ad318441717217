"""Untrusted text for tests, and the characters that must not reach a terminal."""

from __future__ import annotations

import re

#: OSC (sets the title), CSI of 7 and of 8 bits, a forged line, NUL, DEL, C1, bidi controls, line separators.
HOSTILE = (
    "a\x1b]0;owned\x07\x1b[2J\x9b31m\r\npenstock: error: forged\x00\x7f\x85\u202eb\u2066c\u200f\u061c\u2028d"
)
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> None:
    found = BAD.search(text)
    assert found is None, (found, text)
    assert "\npenstock: error: forged" not in text
