"""README and docs are written in plain English: no phrase that a reader has to read twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

#: Phrases that stand for a subject, a number or a time that the sentence does not name.
#: Name it instead, or write "if", "when", "also", "again", "regardless of".
RIDDLES = (
    *("so many", "so long as", "so long from", "so often", "whoever", "whatever", "whichever", "whomever"),
    *("lest", "likewise", "anew", "comes to be", "goes on from", "it is no matter", "by lot"),
    *("goes on", "go on", "made up for", "of yours"),
    *("looks for himself", "looks for itself", "of its own accord", "not there yet", "all the same"),
)
#: Phrases that make persons of programs.
PERSONS = (
    *("nobody knows", "somebody", "himself", "is told", "are told", "hears", "in doubt", "slip of the pen"),
    *("without a word", "concerns itself", "goes with", "looks whether", "uncharged", "buries"),
)
CODE = re.compile(r"^( *)```.*?^\1```$|<!--.*?-->|^#{1,6} `.*?$|`[^`]*`", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The words of a page in lower case, without code, comments and headings that quote a message."""
    text = CODE.sub(" … ", page.read_text("utf-8"))
    return f" {' '.join(re.findall(r'[a-z]+|[^a-z ]', text.lower()))} "


def test_code_comments_and_quoted_messages_are_no_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n### `lest it breaks`\n<!-- anew -->\n```\nwhoever\n```\nnot `somebody`,\n\nlikewise\n"
    )
    assert " likewise " in prose(page)
    assert not [word for word in ("lest", "anew", "whoever", "somebody") if word in prose(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain_english(page: Path) -> None:
    words = prose(page)
    assert not [phrase for phrase in (*RIDDLES, *PERSONS) if f" {phrase} " in words]
