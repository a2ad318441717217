"""The computation of the demo, without Penstock: used by the tasks and by the check of their results.

`python -m penstock.demo.survey DIR [PART/PARTS]` prints the surveys of a directory's files as JSON.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
import warnings
from collections.abc import Iterable
from pathlib import Path

import msgspec

#: Directories that are not part of the standard library, but may be inside its directory.
_FOREIGN = {"site-packages", "dist-packages", "__pycache__"}


class Survey(msgspec.Struct, frozen=True):
    """Measurements of one file. A file that does not parse (a test of bad syntax) has only its lines."""

    sha256: str
    lines: int
    functions: int = 0
    classes: int = 0
    longest: str = ""
    longest_lines: int = 0
    parses: bool = True


class Totals(msgspec.Struct, frozen=True):
    """The sum of many surveys."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    longest: str = ""
    longest_lines: int = 0
    unparsed: int = 0


def standard_library() -> Path:
    """The directory of Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def files_under(root: Path) -> list[Path]:
    """Every .py file below `root`, sorted, without installed packages."""
    return sorted(
        path
        for path in root.rglob("*.py")
        if path.is_file() and not _FOREIGN.intersection(path.relative_to(root).parts)
    )


def fingerprint(path: str | Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def survey(path: str | Path) -> Survey:
    """Parse a file and measure it."""
    text = Path(path).read_bytes()
    digest, lines = hashlib.sha256(text).hexdigest(), len(text.splitlines())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the surveyed code are of no interest here
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Survey(digest, lines, parses=False)
    functions, classes, longest, longest_lines = 0, 0, "", 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions += 1
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > longest_lines:
                longest, longest_lines = node.name, length
    return Survey(digest, lines, functions, classes, longest, longest_lines)


def total(surveys: Iterable[Survey]) -> Totals:
    """Sum up surveys; among functions of the same length the first one counts as the longest."""
    files = lines = functions = classes = unparsed = longest_lines = 0
    longest = ""
    for one in surveys:
        files += 1
        lines += one.lines
        functions += one.functions
        classes += one.classes
        unparsed += not one.parses
        if one.longest_lines > longest_lines:
            longest, longest_lines = one.longest, one.longest_lines
    return Totals(files, lines, functions, classes, longest, longest_lines, unparsed)


def main(root: str, part: str = "0/1") -> None:
    """Print {path: survey} as JSON for every PARTS-th file, starting at PART."""
    number, parts = map(int, part.split("/"))
    mine = files_under(Path(root))[number::parts]
    sys.stdout.buffer.write(msgspec.json.encode({str(path): survey(path) for path in mine}))


if __name__ == "__main__":
    main(*sys.argv[1:])
