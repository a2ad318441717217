"""Assemble each Lua script from its own file and the shared parts in `scripts/lib/`.

A line `-- include: clock states queue` is replaced by these parts, in this order. A part may include other
parts. The names of parts included inside of a function are local to that function, and are defined when it is
called. So a script pays for rarely needed parts only when it uses them, and stays within Lua's limit of 200
local names per function.

Parts are included in the order of `ORDER`, each after the parts that its header names (`-- needs: …`);
`tests/stores/redis/test_scripts.py` checks this, and that no assembled script uses an undefined name.
"""

from __future__ import annotations

import re

from penstock.stores.redis.wire.calls import Script
from penstock.stores.statements import Statements

__all__ = ["INCLUDE", "ORDER", "SCRIPTS"]

#: All shared parts, in the order in which scripts include them.
ORDER = (
    "size_check",
    "clock",
    "states",
    "status_codes",
    "state_codes",
    "dispatch",
    "queue",
    "limits",
    "profiles",
    "counts",
    "lease_ends",
    "record",
    "partitions",
    "places",
    "aside",
    "batches",
    "replacing",
    "insert",
    "moving",
    "lease",
    "lookup",
    "removing",
    "cancelling",
    "listing",
    "periodic",
    "days",
    "promote_batches",
    "steps",
    "signals",
)
INCLUDE = re.compile(r"^ *-- include: (.+)$", re.MULTILINE)
#: Comments are removed, because Redis would keep them in memory with the script.
_COMMENTS = re.compile(r"^\s*--.*\n|[ \t]+-- .*$", re.MULTILINE)


class Scripts(dict[str, Script]):
    """All scripts by name. Each is assembled at its first use: all together take 40 to 80 ms."""

    def __init__(self) -> None:
        super().__init__()
        self._files = Statements("penstock.stores.redis", "scripts", ".lua")
        self._parts = Statements("penstock.stores.redis", "scripts/lib", ".lua")

    def __missing__(self, name: str) -> Script:
        text = self._files[name]
        while INCLUDE.search(text):
            text = INCLUDE.sub(self._included, text)
        script = self[name] = Script(name, _COMMENTS.sub("", text))
        return script

    def _included(self, line: re.Match[str]) -> str:
        return "\n".join(self._parts[part] for part in line[1].split())

    def names(self) -> list[str]:
        """Return the names of all scripts, also of those that are not assembled yet."""
        return sorted(key.partition(".")[0] for key in self._files)


SCRIPTS = Scripts()
