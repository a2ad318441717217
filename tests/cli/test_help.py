"""Help texts of all commands: written in plain English, and complete."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from penstock.cli.main import cli
from tests.cases import each

#: Phrases that a help text must not contain. Write what the option limits, in which unit, and its default.
BANNED = (
    *("so many", "for so long", "so often", "whoever", "whatever", "whichever", "lest", "likewise", "anew"),
    *("is no matter", "looks for himself", "by itself", "nobody", "somebody", "is told", "goes on"),
    *("comes to be", "not there yet", "there already", "what runs", "in whole", "this directory"),
    *("made up for", "make up for", "brings its own", "goes with", "that they hold", "takes it away"),
)


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Context]]:
    context = click.Context(command, info_name=name)
    yield name, context
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            sub = command.get_command(context, word)
            assert sub is not None
            yield from commands(sub, f"{name} {word}")


ALL = dict(commands(cli, "penstock"))


def test_all_commands_are_walked():
    assert {"penstock", "penstock worker", "penstock queues set", "penstock periodic add"} <= ALL.keys()


@each("name", ALL)
def test_a_help_text_is_plain_english(name):
    text = ALL[name].command.get_help(ALL[name])
    words = f" {' '.join(re.findall(r'[a-z]+', text.lower()))} "
    assert not [phrase for phrase in BANNED if f" {phrase} " in words]


@each("name", ALL)
def test_every_command_and_option_has_a_help_text(name):
    command = ALL[name].command
    assert command.help
    for option in command.get_params(ALL[name]):
        if isinstance(option, click.Option):
            assert option.help, f"{name} {option.opts[0]}"
            assert option.help[0].isupper(), option.help
            assert option.help.endswith((".", "]")), option.help
