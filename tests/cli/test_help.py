"""The help of the commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import pytest

from agentobs.cli import cli

SESSION = "SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name."


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands below a group, with their names as on the command line."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


ALL = dict(commands(cli))


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_a_command_explains_its_arguments(name: str) -> None:
    """The help of a command names each of its arguments, and explains what SESSION may be."""
    command = ALL[name]
    text = " ".join((command.help or "").split())
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            for argument in parameter.make_metavar(click.Context(command)).split("|"):
                assert argument.strip("[].") in text
    if "SESSION" in text.split():
        assert SESSION in text


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_a_command_is_its_docstring(name: str) -> None:
    """No text is hidden: `help=` does not replace the docstring of a command."""
    command = ALL[name]
    assert command.callback is not None
    assert inspect.cleandoc(command.help or "") == inspect.getdoc(command.callback)
