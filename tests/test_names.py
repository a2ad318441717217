"""Names are the field's: one class, one name, and no word of the private vocabulary that Penstock once had.

Each ban holds for one of three things:

- BANNED_WORDS: a word of an identifier, of a file name, or of a command or option of the command line.
- BANNED_NAMES: one whole identifier, because its words also have plain meanings (`hold`, `ring`, `turn`).
- BANNED_FILES: the whole name of a file or folder, for the same reason.

Prose is not checked. Neither are names that another project chose: `dialects/` speaks foreign formats, and a
migration, or a schema in a folder `old`, names what older files hold.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from penstock.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "docs", "benchmarks", "examples")
EXEMPT = ("/dialects/", "/migrations/", "/old/")

#: A class name that is defined more than once in `src`, and why.
DEFINED_TWICE: dict[str, str] = {}

#: A word of a name → the word to use instead. Its plural is meant, too.
BANNED_WORDS = {
    "aftercare": "callback_runner",
    "bell": "notifier",
    "burial": "remove_dead",
    "buried": "removed",
    "bury": "remove_dead",
    "carer": "callback_runner",
    "clerk": "field_cipher",
    "dial": "connect",
    "dialing": "connect",
    "draft": "job_call",
    "ear": "listener",
    "errand": "request_batch",
    "gathering": "batch_buffer",
    "grip": "lease_status",
    "gripped": "on_lease_status",
    "handover": "direct_dispatch",
    "hearing": "subscriber",
    "keyed": "key_functions, unique, limited",
    "lane": "partition",
    "narrow": "waiting for a process slot",
    "newcomer": "insert",
    "offering": "worker_offer",
    "packing": "encoding",
    "parcel": "node_request",
    "placing": "transitions",
    "poke": "wake",
    "poked": "woken",
    "ripe": "due",
    "seal": "encrypt",
    "sealed": "encrypted",
    "sealing": "encryption",
    "shelf": "state",
    "sleeper": "waiter",
    "stacked": "prefetched",
    "stranger": "unknown_task, another app",
    "tat": "rate_limiter",
    "tied": "has_dependents",
    "turnstile": "fair_write_lock",
    "unseal": "decrypt",
    "upkeep": "maintenance",
    "vault": "encrypted",
    "wording": "text_encoding",
}

#: A whole identifier, without underscores around it → the name to use instead.
BANNED_NAMES = {
    "ACT": "NEEDS_WRITE",
    "Beat": "HeartbeatRequest",
    "Directory": "Topology",
    "Endings": "ResultWaiter",
    "Gate": "RateLimiter",
    "Gathering": "BatchBuffer",
    "Greeting": "Handshake",
    "Ground": "Context",
    "GROUPED": "COLLECTING",
    "Hold": "KeyChange, LeasedJob, Throttle",
    "Holdings": "LeasedJobs",
    "LifeLock": "LivenessLock",
    "Moved": "TickStatus",
    "NotBegun": "LeaseRevoked",
    "Offer": "WorkerOffer",
    "OpenLane": "Partition",
    "Room": "Backpressure",
    "Talk": "CallPlan",
    "Harm": "Fault, Injection",
    "Ticked": "TickResult, TickAnswered",
    "Tie": "PartitionKey",
    "Turn": "FairShare",
    "Turns": "WeightedRoundRobin",
    "all_doubted": "all_rechecked",
    "doubt": "recheck, suspend_reclaim",
    "doubted": "rechecked",
    "endings": "ends",
    "group_key": "batch_key",
    "grouped": "collecting",
    "harm": "fault, injection",
    "harms": "faults, injections",
    "held_until": "throttled_until",
    "hold_lane": "throttle_partition",
    "inherit": "adopt_callbacks",
    "letters": "status_codes",
    "ring": "notify",
    "sure": "raise_errors",
    "tell_lost": "report_lost_worker",
    "ties": "partition_keys",
}

#: Identifiers that only `src` may not have: elsewhere they mean what they say.
BANNED_NAMES_IN_SRC = {
    "Place": "QueuePosition",
    "gate": "rate_limiter",
    "gates": "rate_limiters",
    "letter": "status_code",
    "stand": "environment",
    "turns": "weighted_round_robin",
}

#: The whole name of a file or a folder, without `test_` and the ending, or the last two names of a path
#: → the name to use instead.
BANNED_FILES = {
    "act": "needs_write",
    "ask": "command",
    "book": "counters",
    "caller": "callback_executor",
    "directory": "topology",
    "endings": "result_waiter",
    "client/following": "progress_stream",
    "gates": "rate_limiter",
    "greeting": "handshake",
    "ground": "context",
    "grouping": "batches",
    "here": "loop_connections",
    "hold": "leased_jobs",
    "holding": "unique_rules",
    "verify/kinds": "types",
    "letters": "status_codes",
    "lines": "sync_connection",
    "links": "async_connection",
    "memory/orders": "indexes",
    "peek": "probe",
    "pressure": "backpressure",
    "relay": "proxy",
    "room": "size_check",
    "stack": "prefetch",
    "stand": "environment",
    "step": "transaction_context",
    "talk": "call_plan",
    "telling": "outcome_events",
    "ties": "partitions",
    "turns": "fair_share",
    "client/waiting": "timeouts",
    "wires": "proxy",
}

#: Not renamed yet. Take a word out here when the last name with it is gone.
PENDING: set[str] = set()


# --- what is banned -----------------------------------------------------------------------------


def words_of(name: str) -> list[str]:
    """snake_case, kebab-case and CamelCase split into lower-case words: `OpenHTTPLine` → open, http, line."""
    parted = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", name)
    return [word for word in re.split(r"[\W_]+", parted.lower()) if word]


def banned_word(name: str) -> tuple[str, str] | None:
    """The first banned word in a name, and what to use instead."""
    for word in words_of(name):
        for form in (word, word.removesuffix("s"), word.removesuffix("es")):
            if form in BANNED_WORDS and form not in PENDING:
                return form, BANNED_WORDS[form]
    return None


@cache
def banned(identifier: str, in_src: bool = True) -> tuple[str, str] | None:
    """The banned name or word in an identifier, and what to use instead."""
    bare = identifier.strip("_")
    names = BANNED_NAMES | BANNED_NAMES_IN_SRC if in_src else BANNED_NAMES
    if bare in names and bare not in PENDING:
        return bare, names[bare]
    return banned_word(identifier)


def banned_file(path: str) -> tuple[str, str] | None:
    """The banned name or word in one of the parts of a path, and what to use instead."""
    folder = ""
    for part in Path(path).parts:
        bare = part.split(".")[0].removeprefix("test_").strip("_")
        for name in (bare, f"{folder}/{bare}"):
            if name in BANNED_FILES and name not in PENDING:
                return name, BANNED_FILES[name]
        if found := banned_word(bare):
            return found
        folder = bare
    return None


# --- where names are ----------------------------------------------------------------------------


def names_in_python(text: str) -> Iterator[tuple[str, int]]:
    """Each name that a module defines, and its line. A name is checked where it is defined, not used."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno


def names_in_scripts(text: str) -> Iterator[tuple[str, int]]:
    """Each identifier of a Lua or SQL script outside of comments and strings, and its line."""
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"'[^']*'|\"[^\"]*\"|--.*", " ", line)
        for name in re.findall(r"[A-Za-z_]\w*", code):
            yield name, number


READERS: dict[str, Callable[[str], Iterator[tuple[str, int]]]] = {
    ".py": names_in_python,
    ".lua": names_in_scripts,
    ".sql": names_in_scripts,
}


def findings_in(path: str, text: str) -> list[str]:
    """A line for each banned name of a file: where it is, and what to use instead."""
    reader = READERS.get(Path(path).suffix)
    in_src = path.startswith("src/")
    if reader is None or not any(banned(name, in_src) for name in set(re.findall(r"[A-Za-z_]\w*", text))):
        return []
    return [
        f"{path}:{line}: {name}: not {found[0]!r} but {found[1]!r}"
        for name, line in reader(text)
        if (found := banned(name, in_src))
    ]


def tracked_files() -> list[str]:
    """The files of the repository that are checked: their paths from its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("this is no checkout")
    found = sorted(set(listed.stdout.split("\n")) - {""})
    return [path for path in found if not any(one in f"/{path}" for one in EXEMPT) and (ROOT / path).exists()]


def names_of_commands(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Each command and option of the command line, and the command that has it."""
    context = click.Context(command, info_name=path)
    for option in command.get_params(context):
        for name in [*option.opts, *option.secondary_opts]:
            yield name, path
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            assert sub is not None
            yield name, path
            yield from names_of_commands(sub, f"{path} {name}")


# --- the tests ----------------------------------------------------------------------------------


def class_names(text: str) -> Iterator[str]:
    if re.search(r"^\s*class \w", text, re.M):
        yield from (node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def test_no_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in class_names(path.read_text("utf-8")):
            places[name].append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not {name: paths for name, paths in twice.items() if name not in DEFINED_TWICE}
    assert DEFINED_TWICE.keys() <= twice.keys(), "a reason for what is defined once"


def test_no_identifier_has_a_banned_name() -> None:
    found = [
        line
        for path in tracked_files()
        if Path(path).suffix in READERS and path != "tests/test_names.py"
        for line in findings_in(path, (ROOT / path).read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_file_has_a_banned_name() -> None:
    found = [
        f"{path}: not {why[0]!r} but {why[1]!r}" for path in tracked_files() if (why := banned_file(path))
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_command_and_no_option_has_a_banned_name() -> None:
    found = [
        f"{where} {name}: not {why[0]!r} but {why[1]!r}"
        for name, where in names_of_commands(cli, "penstock")
        if (why := banned(name.lstrip("-")))
    ]
    assert not found, "\n" + "\n".join(found)


def test_what_is_pending_is_banned() -> None:
    assert (
        BANNED_WORDS.keys() | BANNED_NAMES.keys() | BANNED_NAMES_IN_SRC.keys() | BANNED_FILES.keys()
        >= PENDING
    )


@pytest.mark.parametrize(
    "name", ["Lane", "open_lane", "OpenLanes", "_errands", "HTTPErrand", "test_a_seal", "Turns", "_Offer"]
)
def test_a_banned_name_is_found(name: str) -> None:
    assert banned(name)


@pytest.mark.parametrize("name", ["plane", "lateral", "begin_turn", "hold", "appeared", "year", "holding"])
def test_a_name_that_has_a_banned_word_inside_another_is_not(name: str) -> None:
    assert not banned(name)


def test_only_names_are_found_in_code() -> None:
    python = "def errand(x):\n    'a lane'  # lane\n    return x.lane\n"
    assert findings_in("src/a.py", python) == ["src/a.py:1: errand: not 'errand' but 'request_batch'"]
    lua = "local lane = 'lane' -- lane\nreturn \"lane\""
    assert findings_in("src/a.lua", lua) == ["src/a.lua:1: lane: not 'lane' but 'partition'"]
