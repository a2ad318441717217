"""What the documentation says is true: its code runs, its commands parse, its sessions print what they show,
its links lead somewhere, and its tables are those of the code.

Marks that the pages carry for this file, each on a line of its own above a block:

- `` `tasks.py`: `` names the file that a block is. Python is imported, and there for the blocks after it.
- `<!-- continues -->` puts a Python block behind the one before it.
- `<!-- not run: why -->` is the reason why a block is only read.

The console blocks of a page that shows files are one session, and are played as one, in bash.

A snippet or a session that names `redis://localhost:6379` gets a Redis of its own in the place of that one.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from penstock import Queue, events, retry
from penstock.app.periodic import PeriodicOptions
from penstock.app.queue import QueueSettings
from penstock.cli.commands.worker import parse_queues
from penstock.cli.main import COMMANDS, cli
from penstock.client.options import CallOptions, DefaultOptions, TaskOptions
from penstock.config import KNOBS, load
from penstock.core import errors
from penstock.core.errors import did_you_mean
from penstock.dialects.lmstfy.settings import read_config
from penstock.pool import Pool
from tests.packages import packages_or_skip
from tests.servers import RedisServer

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def named(page: Path) -> str:
    """How a page is called in the names of tests: by its way from docs/."""
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


# --- reading a page -----------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block: where it stands, what it is, and what the line above says of it."""

    page: Path
    line: int
    language: str
    text: str
    file: str = ""
    continues: bool = False
    not_run: str = ""

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = iter(enumerate(page.read_text("utf-8").splitlines(), 1))
    above = ""
    for number, line in lines:
        fence = re.match(r"( *)```(\w*)$", line)
        if not fence:
            above = line.strip() or above
            continue
        body = []
        for _, inner in lines:
            if inner == f"{fence[1]}```":
                break
            body.append(inner.removeprefix(fence[1]))
        file = re.match(r"`([\w.][\w./-]*)`.*:$", above)  # not an option of a command
        why = re.match(r"<!-- not run: (.+) -->$", above)
        found.append(
            Block(
                page,
                number,
                fence[2],
                "\n".join(body) + "\n",
                file[1] if file else "",
                above == "<!-- continues -->",
                why[1] if why else "",
            )
        )
        above = ""
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def programs() -> Iterator[tuple[Block, str, dict[str, str]]]:
    """Each Python block, with what it continues before it, and the files that its page has shown so far."""
    page, before, files = None, "", {}
    for block in of("python"):
        if block.page != page:
            page, before, files = block.page, "", {}
        text = before + block.text if block.continues else block.text
        before = text
        if block.file:
            files = {**files, block.file: text}
        yield block, text, files


PROGRAMS = {block.name: (block, text, files) for block, text, files in programs() if not block.not_run}


# --- Python blocks run --------------------------------------------------------------------------

#: Runs snippets in forks of itself, for starting an interpreter and importing all takes longer than most.
SERVER = """
import gc, importlib, json, os, runpy, signal, sys, traceback
import penstock
for name in penstock.__all__:
    getattr(penstock, name)  # imported where it is first asked for
for name in ("inspector", "stores.encrypted", "stores.memory.store", "stores.sqlite.store", "worker.worker"):
    importlib.import_module("penstock." + name)
gc.freeze()

def play(order):
    os.chdir(order["cwd"])
    said = os.open("said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    signal.alarm(100)
    sys.path.insert(0, order["cwd"])
    sys.argv[:] = [order["file"]]
    try:
        if order["main"]:
            runpy.run_path(order["file"], run_name="__main__")
        else:
            importlib.import_module(order["file"].removesuffix(".py").replace("/", "."))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        code = play(json.loads(line))
        sys.stdout.flush()
        os._exit(code)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(self, cwd: Path, file: str, *, main: bool) -> tuple[int, str]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"cwd": str(cwd), "file": file, "main": main}) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        return status, (cwd / "said").read_text()

    def close(self) -> None:
        self.process.communicate(timeout=60)


def clean_environment() -> dict[str, str]:
    """Ours, without the developer's own settings, and with the command `penstock` of this interpreter."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    return {**env, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "COLUMNS": "160"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


LOCAL_REDIS = "redis://localhost:6379"


@pytest.fixture
def on_redis(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The text, with a Redis of this test in the place of the one that a reader would have."""
    started: list[RedisServer] = []

    def put(text: str) -> str:
        if LOCAL_REDIS not in text:
            return text
        if not started:
            started.append(request.getfixturevalue("new_redis")(appendonly=True))
        return text.replace(LOCAL_REDIS, started[0].url)

    return put


def server_if_named(*texts: str) -> list[pytest.MarkDecorator]:
    """The mark `server` for a test of these texts, if one of them names the Redis of a reader."""
    return [pytest.mark.server] if any(LOCAL_REDIS in text for text in texts) else []


#: Packages that snippets import and Penstock does not need.
FRAMEWORKS = ("django", "fastapi", "flask", "sqlalchemy", "starlette")


def frameworks_or_skip(*texts: str) -> None:
    """Skip a test of these texts without the frameworks that they import."""
    imported = {name for text in texts for name in re.findall(r"^(?:from|import) (\w+)", text, re.M)}
    packages_or_skip(*imported.intersection(FRAMEWORKS))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=server_if_named(text, *files.values()))
        for name, (_, text, files) in PROGRAMS.items()
    ],
)
def test_a_snippet_runs(name: str, server: Server, tmp_path: Path, on_redis: Callable[[str], str]) -> None:
    block, text, files = PROGRAMS[name]
    frameworks_or_skip(text, *files.values())
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(on_redis(content))
    file = block.file or "snippet.py"
    text = on_redis(text)
    # behind as many empty lines as stand above it: a traceback then shows the line of the page
    (tmp_path / file).write_text(text if block.continues else "\n" * block.line + text)
    status, said = server.play(tmp_path, file, main=not block.file)
    assert status == 0, f"{name} fails:\n{said}"


@pytest.mark.parametrize(
    ("block", "file"),
    [(block, found[1]) for block in BLOCKS if (found := re.match(r"an excerpt of (\S+),", block.not_run))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_excerpt_is_in_its_file(block: Block, file: str) -> None:
    assert block.text in (ROOT / file).read_text("utf-8")


def test_no_snippet_sleeps() -> None:
    sleep = re.compile(r"\btime\.sleep\(|\basyncio\.sleep\(")
    asleep = [name for name, (_, text, _) in PROGRAMS.items() if sleep.search(text)]
    assert not asleep, "an example should wait for something, not for some time"


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.name)
def test_a_file_of_settings_is_accepted(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(block.text)
    assert tomllib.loads(block.text)
    if block.page == DOCS / "lmstfy.md":  # lmstfy's own file
        assert read_config(file).notes == ()
    else:
        load(env={}, file=file)


# --- commands parse -----------------------------------------------------------------------------


def commands_of(block: Block) -> Iterator[str]:
    """The command lines; a console shows them behind a `$`, a script is nothing else."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console" and line.startswith("$ "):
            yield line[2:]
        elif block.language == "bash" and not line.startswith("#"):
            yield line


def penstocks(command: str) -> Iterator[list[str]]:
    """The words after each `penstock` that is called in a command line."""
    lexer = shlex.shlex(command.replace("$(", "( "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    simple: list[list[str]] = [[]]
    for word in lexer:
        if re.fullmatch(r"[();<>|&]+", word):
            simple.append([])
        elif simple[-1] or not re.match(r"\w+=", word):  # not a variable that is set for the command
            simple[-1].append(word)
    yield from (words[1:] for words in simple if words[:1] == ["penstock"])


CALLS = {
    f"{block.name} penstock {shlex.join(words)}": words
    for block in BLOCKS
    for command in commands_of(block)
    for words in penstocks(command)
}


@pytest.mark.parametrize("call", CALLS)
def test_a_command_line_parses(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[click.Context] = []
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: parsed.append(ctx))
    monkeypatch.setattr("penstock.cli.watching.Listing.invoke", lambda self, ctx: parsed.append(ctx))
    cli.main(list(CALLS[call]), standalone_mode=False)
    last = parsed[-1]
    alone = isinstance(last.command, click.Group) and not last.command.invoke_without_command
    assert not alone, "a group alone prints its help"
    if last.command.name == "worker" and last.params["queues"]:
        parse_queues(last.params["queues"])


def unknown_part(text: str) -> str | None:
    """What is wrong with a command in the text: a word that is no command, or a group without one of its
    commands, which prints its help. A group as such is written with three dots.
    """
    found: click.Command = cli
    for word in text.split():
        as_such = word in ("...", "…") or word.isupper() or word.startswith("-")
        if not isinstance(found, click.Group) or as_such:
            return None
        if not re.fullmatch(r"[a-z][a-z\\|-]*", word):
            break
        commands = [found.get_command(click.Context(found), one) for one in re.split(r"\\?\|", word)]
        if None in commands:
            return word
        found = commands[0] or found
    alone = isinstance(found, click.Group) and not found.invoke_without_command
    return "a group alone prints its help" if alone else None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_command_in_the_text_exists(page: Path) -> None:
    calls = re.findall(r"`penstock ([^`]+)`", without_blocks(page))
    assert {call: wrong for call in calls if (wrong := unknown_part(call))} == {}


def test_the_page_of_the_command_line_has_every_command_and_no_other() -> None:
    page = (DOCS / "cli.md").read_text("utf-8")
    assert set(re.findall(r"^\| `penstock (\w+)", page, re.M)) == set(COMMANDS)


def test_each_situation_of_the_runbook_has_a_command() -> None:
    table, *sections = (DOCS / "operating.md").read_text("utf-8").split("\n## ")
    situations = set(re.findall(r"\]\(#([\w-]+)\)", table))
    commands = {text.partition("\n")[0].lower().replace(" ", "-"): text for text in sections}
    assert len(situations) > 20
    assert not [one for one in situations if "$ penstock " not in commands[one]]


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    shown = [c for b in of("console") if b.page.name == "README.md" for c in commands_of(b)]
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.M))
    made = [shlex.split(command, comments=True)[1] for command in shown if command.startswith("make ")]
    assert made == ["demo", "test"]
    assert set(made) <= targets
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"`make ([a-z-]+)", contributing)) <= targets


# --- sessions print what they show --------------------------------------------------------------

SESSIONS = sorted({block.page for block in BLOCKS if block.file}, key=lambda page: page.name)
MARK = "@@@@"
#: No session may hang longer than this (s); the longest takes a quarter of a minute alone.
_SESSION = 240


class Shown(NamedTuple):
    """A command of a session, and the lines that the page shows below it."""

    where: str
    command: str
    lines: list[str]


def session_of(page: Path, home: Path, on_redis: Callable[[str], str]) -> tuple[str, list[Shown]]:
    """The page as a script: files are written when their turn comes, commands are marked."""
    # without `set -m`: bash would go on to the next command when one is only stopped for a moment
    script = ["trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    shown: list[Shown] = []
    texts = {name: text for name, (_, text, _) in PROGRAMS.items()}
    for n, block in enumerate(b for b in BLOCKS if b.page == page and not b.not_run):
        if block.file:
            content = home / f"file-{n}"
            content.write_text(on_redis(texts.get(block.name, block.text)))
            script.append(f"mkdir -p $(dirname {block.file}) && cp {content} {block.file}")
        elif block.language == "console":
            for line in block.text.splitlines():
                if not line.startswith("$ "):
                    shown[-1].lines.append(line)
                    continue
                command = line[2:]
                shown.append(Shown(f"{block.name}: {command}", command, []))
                behind = f"{command[:-1]} >>{home}/behind 2>&1 &" if command.endswith("&") else command
                script.append(f"echo {MARK}{len(shown) - 1}; {behind}")
    return on_redis("\n".join(script) + "\n"), shown


@pytest.mark.slow
@pytest.mark.timeout(_SESSION + 30)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=server_if_named(page.read_text("utf-8")), id=named(page)) for page in SESSIONS],
)
def test_a_session_prints_what_its_page_shows(
    page: Path, tmp_path: Path, on_redis: Callable[[str], str]
) -> None:
    frameworks_or_skip(page.read_text("utf-8"))
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    script, shown = session_of(page, home, on_redis)
    assert any(lines for *_, lines in shown), "a session that shows nothing"
    output = play(script, cwd)
    parts = re.split(rf"^{MARK}(\d+)\n", output, flags=re.M)
    printed = {int(n): text.splitlines() for n, text in zip(parts[1::2], parts[2::2], strict=True)}
    behind = (home / "behind").read_text() if (home / "behind").exists() else ""
    for n, (where, _, lines) in enumerate(shown):
        missing = first_missing(lines, printed.get(n, []))
        assert missing is None, (
            f"{where} does not print\n  {missing}\nbut\n{chr(10).join(printed.get(n, ['(nothing)']))}\n"
            f"and in the background:\n{behind}"
        )


def play(script: str, cwd: Path) -> str:
    """What it prints; it and all that it started are gone afterwards."""
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as bash:
        try:
            return bash.communicate(timeout=_SESSION)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)


def first_missing(wanted: list[str], printed: list[str]) -> str | None:
    """The first line that is not there in its turn; others may stand between."""
    rest = iter(printed)
    for line in wanted:
        if not any(re.fullmatch(as_pattern(line), as_seen(other)) for other in rest):
            return line
    return None


def as_seen(line: str) -> str:
    """Without what differs from run to run: ids, instants, ages, pids, hosts, the width of columns."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>", line)
    line = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*Z?", "<instant>", line)
    line = re.sub(r"\b[\d.]+ (ms|s|min|h|d) ago\b", "<age>", line)
    line = re.sub(r"\b\d+ MB\b( +[\d.]+ m?s\b)?", "<size and time>", line)
    line = re.sub(r"^<instant> \d+ ", "<instant> <pid> ", line)
    line = re.sub(r"^(<id> +)\S+ +\d+ +running", r"\1<host> <pid> running", line)
    return " ".join(line.split())


def as_pattern(line: str) -> str:
    """`…` stands for anything."""
    return ".*".join(re.escape(part) for part in as_seen(line).split("…"))


# --- links --------------------------------------------------------------------------------------


def without_blocks(page: Path) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.M | re.S)


def anchors_of(page: Path) -> set[str]:
    """As the usual renderers make them of headings."""
    headings = re.findall(r"^#+ +(.+?)\s*$", without_blocks(page), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if re.match(r"[a-z]+://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            lost.append(f"{target}: no such file")
        elif anchor and anchor not in anchors_of(there):
            lost.append(f"{target}: no such heading{did_you_mean(anchor, anchors_of(there))}")
    assert not lost


def test_every_class_that_a_page_names_with_its_module_is_there() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"\bpenstock(?:\.[a-z_]+)+\.[A-Z]\w+", page.read_text())
    }
    parts = {name: name.rpartition(".") for name in named}
    assert {
        name
        for name, (module, _, kind) in parts.items()
        if not hasattr(importlib.import_module(module), kind)
    } == set()


def test_every_page_that_the_code_names_is_there() -> None:
    named = {
        (str(source.relative_to(ROOT)), page)
        for source in (ROOT / "src").rglob("*.py")
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text("utf-8"))
    }
    assert len(named) > 10
    assert not [where for where in named if not (ROOT / where[1]).exists()]


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", index))
    assert linked == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}


# --- tables and lists are the code's ------------------------------------------------------------


def test_the_page_of_events_has_every_event_with_all_it_says() -> None:
    kinds = [kind for kind in map(events.__dict__.get, events.__all__) if is_event(kind)]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", (DOCS / "events.md").read_text("utf-8"), re.M)
    documented = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows}
    common = ["at"]
    job = [*common, "id", "queue", "task", "attempt"]
    for kind in kinds:
        own = kind.__struct_fields__
        rest = own[len(job) :] if list(own[: len(job)]) == job else own[len(common) :]
        assert documented.pop(kind.__name__, None) == list(rest), f"events.md: {kind.__name__} says {own}"
    assert not documented, "events.md has events that are not there"


def is_event(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event


def test_the_page_of_errors_has_the_tree_of_the_module_and_a_word_on_each() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    assert errors.__doc__
    tree = errors.__doc__.split("\n", 2)[2].strip()
    assert f"```\n{tree}\n```" in page, f"docs/errors.md should have this tree:\n{tree}"
    rows = set(re.findall(r"^\| `(\w+)`", page, re.M))
    kinds = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert rows == kinds


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    assert errors.__doc__
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+)\b(?! \w+ that)", line)
        if not match or " " in line[: match.start(2)].strip("│├└─ "):
            continue
        depth = match.start(2) // 4
        above[depth:] = [match[2]]
        drawn[match[2]] = above[depth - 1] if depth else ""
    drawn.pop("Every", None)
    for name, parent in drawn.items():
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert parent in bases or not parent, f"{name} is drawn below {parent}, and is a {bases}"
    assert set(drawn) == {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}


def test_the_page_of_retries_has_the_waits_that_are_computed() -> None:
    table = "\n".join(waits_table())
    page = (DOCS / "retries.md").read_text("utf-8")
    assert table in page, f"docs/retries.md should have this table:\n{table}"


def waits_table() -> Iterator[str]:
    """What each policy waits after the first attempts that failed, and until the last one starts."""
    rules = {
        "exponential()": retry.exponential(),
        'exponential("10s", factor=3, cap="1h", jitter=0)': retry.exponential(
            "10s", factor=3, cap="1h", jitter=0
        ),
        'fixed("10s")': retry.fixed("10s"),
        'linear("10s")': retry.linear("10s"),
        "fibonacci()": retry.fibonacci(),
        'steps(1, "10s", "5m")': retry.steps(1, "10s", "5m"),
        "asynq()": retry.asynq(),
        "sidekiq()": retry.sidekiq(),
    }
    yield "| policy | 1 | 2 | 3 | 4 | 5 | 10 | 24 | in all |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, policy in rules.items():
        cells = [span(policy, attempt) for attempt in (1, 2, 3, 4, 5, 10, 24)]
        low = sum(min(both(policy, n)) for n in range(1, 25))
        high = sum(max(both(policy, n)) for n in range(1, 25))
        yield f"| `{name}` | {' | '.join(cells)} | {between(low, high)} |"


def both(policy: retry.RetryPolicy, attempt: int) -> tuple[int, int]:
    """The least and the most that luck allows (ms)."""
    return retry.wait_ms(policy, attempt, 0.0), retry.wait_ms(policy, attempt, 1 - 1e-9)


def span(policy: retry.RetryPolicy, attempt: int) -> str:
    return between(*sorted(both(policy, attempt)))


def between(low: int, high: int) -> str:
    return readable(low) if readable(low) == readable(high) else f"{readable(low)} – {readable(high)}"


def readable(ms: int) -> str:
    """Two digits are enough for a table."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if ms >= 2 * size:
            return f"{ms / size:.2g} {unit}" if ms < 100 * size else f"{ms / size:.0f} {unit}"
    return f"{ms / 1000:.2g} s" if ms < 100_000 else f"{ms / 1000:.0f} s"


@pytest.mark.slow
def test_every_message_in_troubleshooting_is_one_that_the_code_can_say() -> None:
    said = set(texts_of_the_code())
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    messages = re.findall(r"^### `(.+)`$", page, re.M)
    assert len(messages) > 20
    unsaid = [message for message in messages if not any(says(text, message) for text in said)]
    assert not unsaid, "nothing in src says this (any more)"


def texts_of_the_code() -> Iterator[str]:
    """Every text in src; what is filled in at run time is a `…`."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[.\d]*[a-z]|\{\}", "…", node.value)


def says(text: str, message: str) -> bool:
    """Whether the text, with its gaps filled in anyhow, contains the message, with its own."""
    at = 0
    for piece in message.split("…"):
        if piece.strip():
            found = text.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
    return True


def test_each_test_that_a_page_names_is_there() -> None:
    named = [
        (page.name, *found) for page in PAGES for found in re.findall(NAMED_TEST, page.read_text("utf-8"))
    ]
    assert len(named) > 60
    lost = [f"{page}: {path}::{test}" for page, path, test in named if not has_test(ROOT / path, test)]
    assert not lost


NAMED_TEST = r"`(tests/[\w/]+\.py)::(test_\w+)`"


def has_test(path: Path, name: str) -> bool:
    return path.exists() and re.search(rf"^(async )?def {name}\(", path.read_text("utf-8"), re.M) is not None


# --- words --------------------------------------------------------------------------------------

NOT_OUR_WORDS = r"""
    \bbrokers?\b | \bbackends?\b | \bactors?\b | \bDLQ\b | dead[- ]letter | visibility\ timeout | \bnack\b |
    \bTTL\b | \btime_limit\b | \bcountdown\b | \beta= | \bpending\b | \barchived?\b | \brespawn | \bsweep\b |
    \bdefer(red|s)?\b
"""


#: Pages about another system, in the words of that system.
IN_OTHER_WORDS = {DOCS / "lmstfy.md"}


@pytest.mark.parametrize("page", [page for page in LINKING if page not in IN_OTHER_WORDS], ids=named)
def test_a_page_speaks_in_our_words(page: Path) -> None:
    text = page.read_text("utf-8")
    if page.name == "moving.md":  # quotes the words of other systems, as code
        text = re.sub(r"`[^`]*`", "", text)
    found = re.findall(NOT_OUR_WORDS, text, re.X | re.I)
    assert not re.search(NOT_OUR_WORDS, text, re.X | re.I), f"design, Words: {found}"


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_a_page_begins_with_its_title_and_has_no_long_lines(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ")
    wide = [n for n, line in enumerate(lines, 1) if len(line) > 160 and not line.startswith("|")]
    assert not wide


# --- options of tasks ---------------------------------------------------------------------------


def options_in_the_table() -> dict[str, set[str]]:
    """The options of the table in docs/tasks.md, by the column that ticks them: app, task and call."""
    found: dict[str, set[str]] = {"app": set(), "task": set(), "call": set()}
    for line in section(DOCS / "tasks.md", "Options").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 6 and cells[0].startswith("`"):
            for column, tick in zip(found, cells[2:5], strict=True):
                found[column] |= set(re.findall(r"`(\w+)`", cells[0])) if tick else set()
    return found


def test_the_table_of_options_is_complete() -> None:
    assert options_in_the_table() == {
        "app": set(DefaultOptions.__optional_keys__),
        "task": {*TaskOptions.__optional_keys__, "batch"},
        "call": set(CallOptions.__optional_keys__),
    }


def section(page: Path, title: str) -> str:
    """The text below a heading, up to the next one of its rank."""
    rank, rest = re.split(rf"^(#+) {re.escape(title)}$", page.read_text("utf-8"), flags=re.M)[1:]
    return re.split(rf"^{rank} ", rest, maxsplit=1, flags=re.M)[0]


def test_the_names_for_how_many_at_once_exist() -> None:
    rows = [line.split("|") for line in section(DOCS / "limits.md", "How many at once").splitlines()]
    named = {name for row in rows if len(row) > 2 for name in re.findall(r"`([a-z_]+)`", row[1])}
    known = {
        *KNOBS,
        *Queue.__struct_fields__,
        *QueueSettings.__optional_keys__,
        *TaskOptions.__optional_keys__,
        *PeriodicOptions.__optional_keys__,
        *inspect.signature(Pool).parameters,
    }
    assert named >= {"concurrency", "slots", "max_running", "max_running_per_key", "workers", "capacity"}
    assert named <= known
