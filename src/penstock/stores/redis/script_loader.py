"""Assemble each Lua script from its own file and the shared parts that it includes."""

from __future__ import annotations

import re

from penstock.stores.redis.wire.calls import Script
from penstock.stores.statements import Statements

__all__ = ["SCRIPTS"]

#: What stands where this stands. Inside of a function: what is seldom needed, and costs nothing until then.
_INCLUDE = re.compile(r"^ *-- include: (.+)$", re.MULTILINE)
_COMMENTS = re.compile(r"^\s*--.*\n", re.MULTILINE)


def _scripts() -> dict[str, Script]:
    files = Statements("penstock.stores.redis", "scripts", ".lua")
    shared = Statements("penstock.stores.redis.scripts", "lib", ".lua")
    found = {}
    for key in files:
        name = key.partition(".")[0]
        whole = files[key]
        while _INCLUDE.search(whole):  # what is included may include in its turn
            whole = _INCLUDE.sub(lambda line: "\n".join(shared[part] for part in line[1].split()), whole)
        found[name] = Script(name, _COMMENTS.sub("", whole))
    return found


SCRIPTS = _scripts()
