"""Commands and options of other systems: the message names ours."""

from __future__ import annotations

import pytest

from penstock.core.peer_words import tables
from tests.cli.conftest import IN_A_FILE, Cli

pytestmark = IN_A_FILE


def words_of(place: str) -> list[tuple[str, str]]:
    found = {word: text for words in tables(place).values() for word, text in words.items()}  # type: ignore[arg-type]
    return sorted(found.items())


@pytest.mark.parametrize(("word", "text"), words_of("command"), ids=[word for word, _ in words_of("command")])
def test_a_command_of_another_system_names_ours(penstock: Cli, word: str, text: str) -> None:
    assert f"no command {word!r}" in (says := penstock.says(2, word))
    assert text in says


@pytest.mark.parametrize(("word", "text"), words_of("command option"))
def test_an_option_of_anothers_worker_names_ours(penstock: Cli, word: str, text: str) -> None:
    says = penstock.says(2, "worker", word, "x")
    assert says.startswith(f"no such option {word!r}; ")
    assert says.endswith(text)


def test_an_option_before_the_command_gets_the_same_hint(penstock: Cli) -> None:
    assert "`penstock worker MODULE:app`" in penstock.says(2, "-A", "tasks", "worker")


def test_a_hint_for_workers_is_not_given_for_other_commands(penstock: Cli) -> None:
    assert (
        penstock.says(2, "queues", "list", "-t") == "No such option '-t'; see `penstock queues list --help`"
    )
