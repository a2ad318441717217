"""Groups errors: messages that differ only in numbers, ids, addresses, paths or quoted text are alike."""

from __future__ import annotations

import hashlib
import re

__all__ = ["LONGEST_MESSAGE", "group_id", "normalised"]

#: The most characters of a group's message.
LONGEST_MESSAGE = 200
#: The most characters of a message that are read.
_READ = 1_000
#: Four hexadecimal digits of an IPv6 address, or fewer.
_HEX = "[0-9a-fA-F]{1,4}"
#: Each kind of text that varies, and what stands for it. Quotes inside a word are apostrophes. URLs keep
#: their paths, which say what failed.
_VARYING = re.compile(
    r"""(?P<text>(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`)"""
    r"|(?P<uuid>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    r"|(?P<email>(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<path>(?<![\w.:/>~])~?/[^\s/:'\"<>,;()]+/[^\s:'\"<>,;()]*)"
    rf"|(?P<ip>(?<![\w:\]])(?:(?:{_HEX}(?::{_HEX})*)?::{_HEX}(?::{_HEX})*|(?:{_HEX}:){{7}}{_HEX})(?![\w:]))"
    # a number with more digits is a number
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b)"
    r"|(?P<n>\d+(?:[.,]\d+)*)"
)


def normalised(message: str) -> str:
    """The first line of a message with `<n>`, `<hex>`, `<uuid>`, `<email>`, `<ip>`, `<path>` and `<text>`
    instead of what varies."""
    first = message[:_READ].lstrip().split("\n", 1)[0]
    text = _VARYING.sub(lambda found: f"<{found.lastgroup}>", first).strip()
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def group_id(task: str, kind: str, message: str) -> str:
    """The name of the group of a task's errors of this class with this normalised message, in its queue."""
    return hashlib.blake2b("\0".join((task, kind, message)).encode(), digest_size=12).hexdigest()
