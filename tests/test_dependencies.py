"""The declared dependencies match the imports, as far as that shows offline; `make audit` checks more."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tests.test_house import SRC, Import, all_imports, place

PROJECT: dict[str, Any] = tomllib.loads((SRC.parent / "pyproject.toml").read_text("utf-8"))["project"]


@cache
def imports() -> list[Import]:
    return all_imports(SRC)


def named(requirement: str) -> str:
    """`msgspec>=0.19` → msgspec"""
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found, requirement
    return found[0].lower().replace("-", "_")


def extras(*without: str) -> list[str]:
    return [
        one for name, some in PROJECT["optional-dependencies"].items() if name not in without for one in some
    ]


def test_every_import_is_a_declared_dependency() -> None:
    declared = {named(one) for one in [*PROJECT["dependencies"], *extras("dev")]}
    declared.add("pytest")  # penstock.testing is its plugin, and is there only with it
    foreign = {arrow.foreign.partition(".")[0] for arrow in imports() if arrow.foreign}
    assert foreign - set(sys.stdlib_module_names) <= declared


def test_what_a_bare_install_imports_needs_no_extra() -> None:
    """An extra is imported where it is used, inside a function, and its absence is a clear error."""
    optional = {named(one) for one in extras("dev", "all")} - {named(one) for one in PROJECT["dependencies"]}
    lazily = {
        "redis": ("verify",),  # it has looked for it before it starts a server of its own
        "pydantic": ("codec",),
        "cryptography": ("encryption",),
        "hiredis": ("stores",),
        "textual": ("cli",),  # which is imported by `penstock top` alone
        # which are imported by `penstock serve` alone, and by those who mount the dashboard
        **dict.fromkeys(("httptools", "starlette", "jinja2", "markupsafe", "uvicorn"), ("web",)),
        **dict.fromkeys(("starlette", "uvicorn"), ("web", "cli")),  # `penstock dev` serves the dashboard, too
    }
    for arrow in imports():
        library = arrow.foreign.partition(".")[0]
        if library in optional:
            assert place(arrow.importer)[0] in lazily[library], arrow.where


def test_every_dependency_has_a_least_version_and_comes_by_its_name() -> None:
    for one in [*PROJECT["dependencies"], *extras("all")]:
        requirement = one.partition(";")[0].strip()
        assert re.search(r"(>=|~=)\d", requirement), f"{one}: which version is the first that works?"
        assert "@" not in requirement, f"{one}: from an address nobody checks"
        assert "==" not in requirement, f"{one}: pinned, so that a fix of it does not come"


def test_all_is_all() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    inside = set(everything.partition("[")[2].rstrip("]").split(","))
    assert inside == set(PROJECT["optional-dependencies"]) - {"all", "dev"}


def test_every_exception_from_the_rules_of_security_says_why() -> None:
    silent = [
        f"{path.relative_to(SRC)}:{n}"
        for path in sorted(Path(SRC).rglob("*.py"))
        for n, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"noqa:[^#(]*\bS\d{3}(?![^#]*\()", line) and not re.search(r"#\s*noqa.*(\(|#)", line)
    ]
    assert silent == []


#: Refuses every package of an extra, as an environment without them does, then imports each named module.
_WITHOUT_EXTRAS = """
import importlib, importlib.util, sys
missing, modules = set(sys.argv[1].split()), sys.argv[2].split()
class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in missing else find_spec(name, *rest)
sys.meta_path.insert(0, Refuser())
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module}: {type(error).__name__}: {error}")
"""


def test_what_docs_import_says_which_extra_it_needs() -> None:
    optional = {named(one) for one in extras("dev", "all")} - {named(one) for one in PROJECT["dependencies"]}
    pages = [SRC.parent / "README.md", *sorted((SRC.parent / "docs").rglob("*.md"))]
    modules = {
        module
        for page in pages
        for module in re.findall(r"^ *(?:from|import) (penstock[\w.]*)", page.read_text("utf-8"), re.M)
    }
    assert "penstock.web.dashboard" in modules
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, " ".join(optional), " ".join(sorted(modules))],
        capture_output=True,
        text=True,
        check=True,
    )
    needs = run.stdout.splitlines()
    assert any(line.startswith("penstock.web.dashboard: MissingExtra: ") for line in needs)
    assert [line for line in needs if "pip install 'penstock[" not in line] == []
