"""The house rules: allowed imports, forbidden code in `src`, and the cost of an import.

A module is on a floor and imports from its own floor or lower ones, never from higher ones, and no imports
form a circle. Every import counts: at the top, inside a function, under `TYPE_CHECKING`, and
`import_module("penstock....")`. Add a new module to FLOORS first.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from penstock.core.job import State

SRC = Path(__file__).resolve().parent.parent / "src"
ROOT = "penstock"

# A room is a package directly under `penstock`, or a package of `stores` that is named here. Rooms of one
# floor do not import each other, unless NEIGHBOURS says so. `errors`, `events` and `retry` are public paths
# of what lies in core.
FLOORS: dict[int, str] = {
    1: "core",
    2: "encryption pool",
    3: "config codec",
    4: "stores.contract",
    5: "stores",
    6: "client inspector",
    7: "app",
    8: "maintenance workflows",
    9: "worker web dialects",
    10: "verify testing demo cli errors events logs retry __init__ __main__",
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names.split()}
NEIGHBOURS = {
    "codec": {"config"},
    "dialects": {"web"},
    "worker": {"web"},
    "testing": {"verify"},
    "demo": {"verify"},
    "cli": {"verify", "demo", "testing"},
    "__main__": {"cli"},
    "__init__": {"config", "errors", "events", "logs", "retry", "testing"},
}

# `core` knows the standard library, msgspec and itself; what else a module of it may know is named here.
CORE_MAY_IMPORT = {"msgspec"}
CORE_MAY_ALSO_IMPORT = {"schedule": {"cronsim"}, "cron": {"cronsim"}}

# `stores.redis.wire` knows addresses, sockets and errors, and nothing of jobs.
WIRE = ("stores", "redis", "wire")
WIRE_MAY_IMPORT = {"errors", "forks", "formats", "loops"}

# What every store may use; all else under `stores` is a concrete store.
SHARED_BY_STORES = {
    *("__init__", "contract", "own_store", "around", "sql", "statements"),
    *("result_waiter", "rate_limiter", "text_encoding", "cursors", "job_matcher", "job_log", "signal_check"),
}
# These know stores by their URLs, and a store that is around another one.
KNOW_STORES = {"connect"}

# Inside `worker` only worker.py and services.py (and the package itself) import the services; all
# may know its facts and tools. Besides, these arrows: what is fetched goes to the executor; a process is told
# what to be.
WORKER_KNOWS_ALL = {"__init__", "services", "worker"}
WORKER_FACTS = {
    *("event_loop", "leased_jobs", "liveness", "logs", "metrics_page", "orders", "plan", "process_identity"),
    *("queues", "setup", "shared_lease_table", "signals", "unknown_tasks", "worker_metrics"),
    "worker_stats",
}
WORKER_ARROWS = {
    "announcer": {"callbacks"},
    "callbacks": {"pools"},
    "executor": {"callbacks", "heartbeat", "pools"},
    "fetcher": {"executor"},
    "process": {"worker"},
    "remote_control": {"executor", "pools"},
    "reporter": {"callbacks"},
    "supervisor": {"process"},
}

# Other modules derive lists of states from `State`, so that a new state is in all of them. The reports of the
# ledger and of verify have states among words of their own.
MAY_LIST_STATES = {"job", "lifecycle", "testing", "verify"}
STATES = {state.value for state in State}

# What the command line prints goes by way of one module, which makes it safe to print.
PRINTER = ("cli", "show")
PRINTS = {"print", "click.echo", "click.secho", "click.confirm", "click.prompt", "click.echo_via_pager"}
PRINTS |= {f"sys.{stream}.write" for stream in ("stdout", "stderr")}

MUST_NOT_BE_IMPORTED = [
    "sqlite3",
    "redis",
    "psycopg",
    "http.server",
    "click",
    "rich",
    "cryptography",
    "httptools",
    "starlette",
    "jinja2",
    "uvicorn",
]
IMPORT_BUDGET_MS = 150


# --- reading the source -------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One arrow: `importer` names `target` (ours) or `foreign` (anybody else's) at `where`."""

    importer: str
    where: str
    target: str = ""
    foreign: str = ""


def modules_under(src: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is named as its `__init__`."""
    found = {}
    for path in sorted((src / ROOT).rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def place(module: str) -> tuple[str, ...]:
    """penstock.stores.memory → ("stores", "memory"); the package itself → ("__init__",)."""
    return tuple(module.split(".")[1:]) or ("__init__",)


def room(module: str) -> str:
    """The room that a module lies in: penstock.core.job → "core"; see FLOORS."""
    parts = place(module)
    return ".".join(parts[:2]) if ".".join(parts[:2]) in FLOOR_OF else parts[0]


def within(module: str) -> str:
    """The name a module goes by inside its top package: penstock.worker.pools → "pools"."""
    parts = place(module)
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(module: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, origin]) if origin else ".".join(above)
            names = [submodule_or_origin(origin, alias.name, known) for alias in node.names]
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__"):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                names = [named.value]
        for name in names:
            where = f"{path}:{node.lineno}"
            if name == ROOT or name.startswith(ROOT + "."):
                yield Import(module, where, target=name)
            else:
                yield Import(module, where, foreign=name)


def submodule_or_origin(origin: str, name: str, known: dict[str, Path]) -> str:
    """`from penstock.stores import sqlite` names a module; `from penstock.core.job import Job`, job."""
    full = f"{origin}.{name}"
    return full if full in known or (origin == ROOT and name in FLOOR_OF) else origin


def called_name(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@cache  # most rules read them all, and parsing the package takes most of a second
def all_imports(src: Path) -> list[Import]:
    known = modules_under(src)
    return [found for name, path in known.items() for found in imports_of(name, path, known)]


# --- the rules: each returns what breaks it, in words -------------------------------------------


def unknown_modules(src: Path) -> list[str]:
    return [
        f"{path}: `{room(module)}` has no floor"
        for module, path in modules_under(src).items()
        if room(module) not in FLOOR_OF
    ]


def upward_imports(src: Path) -> list[str]:
    broken = []
    for arrow in all_imports(src):
        if not arrow.target:
            continue
        low, high = room(arrow.importer), room(arrow.target)
        below = FLOOR_OF.get(high, 0) < FLOOR_OF.get(low, 99)
        if low != high and not below and high not in NEIGHBOURS.get(low, ()):
            broken.append(
                f"{arrow.where}: {arrow.importer} (floor {FLOOR_OF.get(low)}) imports "
                f"{arrow.target} (floor {FLOOR_OF.get(high)})"
            )
    return broken


def foreign_to_core(src: Path) -> list[str]:
    broken = []
    for arrow in all_imports(src):
        library = arrow.foreign.partition(".")[0]
        if not library or room(arrow.importer) != "core" or library in sys.stdlib_module_names:
            continue
        if library not in CORE_MAY_IMPORT | CORE_MAY_ALSO_IMPORT.get(within(arrow.importer), set()):
            broken.append(f"{arrow.where}: {arrow.importer} is of the core and imports {arrow.foreign}")
    return broken


def jobs_in_the_wire(src: Path) -> list[str]:
    """Imports of the package that talks to sockets of what knows of jobs, and of sockets above it."""
    broken = []
    for arrow in all_imports(src):
        inside = place(arrow.importer)[:3] == WIRE
        if inside and arrow.target and place(arrow.target)[:3] != WIRE:
            if room(arrow.target) != "core" or within(arrow.target) not in WIRE_MAY_IMPORT:
                broken.append(f"{arrow.where}: {arrow.importer} imports {arrow.target}")
        elif not inside and place(arrow.importer)[:2] == WIRE[:2] and arrow.foreign in ("socket", "ssl"):
            broken.append(f"{arrow.where}: {arrow.importer} imports {arrow.foreign}")
    return broken


def imports_of_another_store(src: Path) -> list[str]:
    broken = []
    for arrow in all_imports(src):
        if not arrow.target or place(arrow.target)[0] != "stores":
            continue
        importer, imported = place(arrow.importer)[0], within(arrow.target)
        if imported in SHARED_BY_STORES or within(arrow.importer) in KNOW_STORES:
            continue
        if importer == "client":
            broken.append(f"{arrow.where}: the client imports a concrete store, {arrow.target}")
        elif importer == "stores" and within(arrow.importer) != imported:
            broken.append(f"{arrow.where}: {arrow.importer} imports the store {arrow.target}")
    return broken


def arrows_inside_worker(src: Path) -> list[str]:
    broken = []
    for arrow in all_imports(src):
        if place(arrow.importer)[0] != "worker" or place(arrow.target or "none.none")[0] != "worker":
            continue
        importer, imported = within(arrow.importer), within(arrow.target)
        if importer in WORKER_KNOWS_ALL or importer == imported:
            continue
        if imported not in WORKER_FACTS | WORKER_ARROWS.get(importer, set()):
            broken.append(f"{arrow.where}: worker/{importer} imports worker/{imported}")
    return broken


def import_circles(src: Path) -> list[str]:
    known = modules_under(src)
    graph: dict[str, set[str]] = {name: set() for name in known}
    for arrow in all_imports(src):
        if arrow.target in known and arrow.target != arrow.importer:
            graph[arrow.importer].add(arrow.target)
    return [
        " → ".join(shortest_way_round(knot, graph)) + f"   ({len(knot)} modules in this knot)"
        for knot in strongly_connected(graph)
        if len(knot) > 1
    ]


def package_circles(src: Path) -> list[str]:
    """The same among packages: inside each package, what lies directly in it, each with all it holds."""
    known = modules_under(src)
    graphs: dict[str, dict[str, set[str]]] = {}
    for arrow in all_imports(src):
        if arrow.target not in known:
            continue
        one, other = arrow.importer.split("."), arrow.target.split(".")
        shared = 0
        while shared < min(len(one), len(other)) and one[shared] == other[shared]:
            shared += 1
        if shared < min(len(one), len(other)):
            graph = graphs.setdefault(".".join(one[:shared]), {})
            low, high = (".".join(name[: shared + 1]) for name in (one, other))
            graph.setdefault(low, set()).add(high)
            graph.setdefault(high, set())
    return [
        " → ".join(shortest_way_round(knot, graph))
        for graph in graphs.values()
        for knot in strongly_connected(graph)
        if len(knot) > 1
    ]


def strongly_connected(graph: dict[str, set[str]]) -> list[set[str]]:
    """Tarjan's algorithm: the sets of modules that all reach each other."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in sorted(graph[node]):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            start = stack.index(node)
            found.append(set(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def shortest_way_round(knot: set[str], graph: dict[str, set[str]]) -> list[str]:
    start = min(knot)
    ways = deque([[start]])
    seen: set[str] = set()
    while ways:
        way = ways.popleft()
        for after in sorted(graph[way[-1]] & knot):
            if after == start:
                return [*way, start]
            if after not in seen:
                seen.add(after)
                ways.append([*way, after])
    raise AssertionError(f"{start} is in no circle")


def forbidden_words(src: Path) -> list[str]:
    broken = []
    for arrow in all_imports(src):
        if arrow.foreign.partition(".")[0] in ("pickle", "_pickle", "cloudpickle", "dill"):
            broken.append(f"{arrow.where}: imports {arrow.foreign}; a stored job is JSON, never pickle")
    for path in modules_under(src).values():
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text, str(path))):
            blind = blind_except(node)
            if blind and not has_boundary(lines[node.lineno - 1 : end_of_clause(node)]):
                broken.append(f"{path}:{node.lineno}: {blind} without `# boundary: why` on its line")
    return broken


def blind_except(node: ast.AST) -> str:
    """What is blind about this node, in words; empty when it is not."""
    if isinstance(node, ast.ExceptHandler):
        if node.type is None:
            return "a bare `except:`"
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        form = "except {}"
    elif isinstance(node, ast.Call) and called_name(node) == "suppress":
        caught, form = node.args, "suppress({})"
    else:
        return ""
    blind = [n.id for n in caught if isinstance(n, ast.Name) and n.id in ("Exception", "BaseException")]
    return f"`{form.format(blind[0])}`" if blind else ""


def end_of_clause(node: ast.AST) -> int:
    """The last line of `except …:` (the formatter may break it) or `suppress(…)`, not its body."""
    if isinstance(node, ast.ExceptHandler):
        return max(node.lineno, node.body[0].lineno - 1)
    return node.end_lineno


def has_boundary(lines: list[str]) -> bool:
    return any(re.search(r"#\s*boundary:\s*\w", line) for line in lines)


def listed_states(src: Path) -> list[str]:
    broken = []
    for module, path in modules_under(src).items():
        if place(module)[0] in MAY_LIST_STATES:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            elements = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            named = {one.value for one in elements if isinstance(one, ast.Constant)} & STATES
            if len(named) > 1:
                broken.append(f"{path}:{node.lineno}: lists the states {', '.join(sorted(named))}")
    return broken


def prints_past_the_edge(src: Path) -> list[str]:
    """Calls that bring text to a terminal by another way than those of cli/show.py."""
    broken = []
    for module, path in modules_under(src).items():
        if place(module)[0] != "cli" or place(module) == PRINTER:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTS:
                broken.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}()")
    return broken


# --- the house as it stands ---------------------------------------------------------------------


def claim(broken: list[str], rule: str) -> None:
    if broken:
        pytest.fail(f"{rule}\n  " + "\n  ".join(broken), pytrace=False)


def test_every_module_has_a_floor() -> None:
    claim(unknown_modules(SRC), "Give each new module its place in FLOORS (tests/test_house.py):")


def test_no_import_runs_up_the_floors() -> None:
    claim(upward_imports(SRC), "An import runs up. Move the thing down, or pass it in as an argument:")


def test_no_imports_run_in_a_circle() -> None:
    claim(import_circles(SRC), "Imports run in a circle. Find what both need and put it below both:")


def test_no_circle_closes_between_packages() -> None:
    claim(package_circles(SRC), "Packages import each other. Find what both need and put it below both:")


def test_core_imports_only_the_standard_library_and_msgspec() -> None:
    claim(foreign_to_core(SRC), "The core knows the standard library, msgspec and itself only:")


def test_the_wire_knows_nothing_of_jobs_and_what_is_above_it_nothing_of_sockets() -> None:
    claim(jobs_in_the_wire(SRC), "Connections below, jobs above (stores/redis/wire):")


def test_no_store_imports_another_and_the_client_imports_none() -> None:
    claim(imports_of_another_store(SRC), "A concrete store is known only to itself and to `connect`:")


def test_inside_worker_only_worker_imports_the_others() -> None:
    claim(
        arrows_inside_worker(SRC),
        "The services of a worker do not know each other (WORKER_ARROWS):",
    )


def test_src_has_no_forbidden_words() -> None:
    claim(forbidden_words(SRC), "Not in this house:")


def test_lists_of_states_are_derived_from_state() -> None:
    claim(listed_states(SRC), "A list of states in text misses the next new one; derive it from State:")


def test_the_command_line_prints_by_one_module() -> None:
    claim(prints_past_the_edge(SRC), "Print by the functions of cli/show.py, which make text safe to print:")


# --- the front door -----------------------------------------------------------------------------

PROBE = """
import json, sys, time
before = set(sys.modules)
started = time.perf_counter()
import penstock
took = time.perf_counter() - started
print(json.dumps({"ms": took * 1000, "new": sorted(set(sys.modules) - before)}))
"""


def fresh_import() -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        pytest.fail(f"`import penstock` failed in a fresh interpreter:\n{ran.stderr}", pytrace=False)
    return json.loads(ran.stdout)


def test_import_penstock_is_quick() -> None:
    times = sorted(float(str(fresh_import()["ms"])) for _ in range(5))
    shown = ", ".join(f"{ms:.0f}" for ms in times)
    assert times[0] < IMPORT_BUDGET_MS, (
        f"`import penstock` took {shown} ms (budget {IMPORT_BUDGET_MS} ms, the best counts). "
        f"See where: python -X importtime -c 'import penstock'"
    )


def test_import_penstock_brings_in_no_driver_no_web_and_no_command_line() -> None:
    new = set(fresh_import()["new"])
    brought = [name for name in MUST_NOT_BE_IMPORTED if name in new]
    assert not brought, (
        f"`import penstock` also imports {', '.join(brought)}; import it where it is used. "
        f"See who does: python -X importtime -c 'import penstock'"
    )


# --- the rules can fail -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "files", "says"),
    [
        (unknown_modules, {"helpers.py": ""}, "`helpers` has no floor"),
        (upward_imports, {"core/job.py": "from penstock.app.app import App"}, "(floor 1) imports"),
        (upward_imports, {"core/job.py": "from ..app import App"}, "penstock.app (floor 7)"),
        (upward_imports, {"core/job.py": "import penstock"}, "penstock (floor 10)"),
        (
            upward_imports,
            {"stores/contract/fetch.py": "def f():\n    import penstock.worker.pools"},
            "fetch.py:2",
        ),
        (upward_imports, {"stores/contract/a.py": "import penstock.stores.memory"}, "(floor 5)"),
        (upward_imports, {"maintenance/x.py": "from penstock.web import y"}, "penstock.web (floor 9)"),
        (upward_imports, {"app/task.py": "import_module('penstock.worker.queues')"}, "(floor 9)"),
        (
            import_circles,
            {
                "core/job.py": "if TYPE_CHECKING:\n    from penstock.core.retry import R",
                "core/retry.py": "from penstock.core import codec",
                "core/codec.py": "def f():\n    from .job import Job",
            },
            "penstock.core.codec → penstock.core.job → penstock.core.retry → penstock.core.codec",
        ),
        (
            package_circles,
            {
                "worker/pools/a.py": "import penstock.worker.executor.b",
                "worker/executor/b.py": "import penstock.worker.pools.c",
                "worker/pools/c.py": "",
            },
            "penstock.worker.executor → penstock.worker.pools → penstock.worker.executor",
        ),
        (foreign_to_core, {"core/job.py": "import click"}, "is of the core and imports click"),
        (
            jobs_in_the_wire,
            {"stores/redis/wire/link.py": "from penstock.core.job import Job"},
            "link imports penstock.core.job",
        ),
        (jobs_in_the_wire, {"stores/redis/store.py": "import socket"}, "store imports socket"),
        (
            imports_of_another_store,
            {"stores/sqlite/store.py": "from penstock.stores.memory import Memory"},
            "penstock.stores.sqlite.store imports the store penstock.stores.memory",
        ),
        (
            imports_of_another_store,
            {"client/client.py": "from penstock.stores import sqlite", "stores/sqlite/__init__.py": ""},
            "the client imports a concrete store, penstock.stores.sqlite",
        ),
        (
            arrows_inside_worker,
            {"worker/executor/settler.py": "from ..fetcher import F"},
            "imports worker/fetcher",
        ),
        (forbidden_words, {"codec.py": "import pickle"}, "imports pickle"),
        (forbidden_words, {"app.py": "try: ...\nexcept: ..."}, "a bare `except:`"),
        (forbidden_words, {"app.py": "try: ...\nexcept (OSError, Exception): ..."}, "app.py:2"),
        (
            forbidden_words,
            {"app.py": "with suppress(BaseException): ..."},
            "`suppress(BaseException)`",
        ),
        (forbidden_words, {"app.py": "try: ...\nexcept Exception: ...  # boundary:"}, "app.py:2"),
        (prints_past_the_edge, {"cli/jobs.py": "click.echo('x')"}, "jobs.py:1: click.echo()"),
        (listed_states, {"cli/jobs.py": "S = ['dead', 'running']"}, "lists the states dead, running"),
        (listed_states, {"cli/show.py": "S = {'dead': 'red', 'parked': 'blue'}"}, "show.py:1"),
    ],
)
def test_a_broken_rule_is_caught(rule, files: dict[str, str], says: str, tmp_path: Path) -> None:
    broken = rule(build(tmp_path, files))
    assert len(broken) == 1
    assert says in broken[0]


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (
            upward_imports,
            {"app/app.py": "from penstock.core.job import Job\nimport json, penstock.stores.contract"},
        ),
        (
            import_circles,
            {"app.py": "from . import job", "job.py": "", "__init__.py": "from .app import A"},
        ),
        (
            package_circles,
            {"core/a.py": "import penstock.app.b", "app/b.py": "import penstock.stores.c", "stores/c.py": ""},
        ),
        (
            foreign_to_core,
            {"core/schedule.py": "import msgspec, cronsim, json", "client/client.py": "import click"},
        ),
        (
            jobs_in_the_wire,
            {"stores/redis/wire/link.py": "import socket\nfrom penstock.core.errors import StoreError"},
        ),
        (
            imports_of_another_store,
            {
                "stores/sqlite/store.py": "from .verbs import v\nfrom ..statements import s",
                "stores/sql/verbs.py": "",
                "stores/connect.py": "from penstock.stores.sqlite.store import S",
            },
        ),
        (
            arrows_inside_worker,
            {
                "worker/__init__.py": "from .worker import Worker",
                "worker/worker.py": "from . import fetcher",
                "worker/fetcher.py": "from penstock.stores.contract import Store",
                "worker/executor.py": "from .pools import Pool",
                "worker/supervisor.py": "from .shared_lease_table import Table",
            },
        ),
        (
            forbidden_words,
            {"app.py": "try: ...\nexcept Exception: ...  # noqa: X  # boundary: why"},
        ),
        (forbidden_words, {"app.py": "try: ...\nexcept OSError: ..."}),
        (prints_past_the_edge, {"cli/show.py": "click.echo('x')", "pool.py": "print('x')"}),
        (listed_states, {"job.py": "S = ['dead', 'running']", "app.py": "S = ['dead', 'or alive']"}),
        (
            forbidden_words,
            {"app.py": "try: ...\nexcept (\n  Exception\n):  # boundary: why\n  ..."},
        ),
    ],
)
def test_a_kept_rule_is_left_in_peace(rule, files: dict[str, str], tmp_path: Path) -> None:
    assert rule(build(tmp_path, files)) == []


def build(src: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = src / ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return src
