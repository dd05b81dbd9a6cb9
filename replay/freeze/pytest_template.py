"""The template of the test that `freeze` writes next to a fixture.

The test depends only on the fixture, so `freeze` can recognize a test that was not edited, and replace it. It contains
only labels from the recording; no text of a session becomes code.
"""

from __future__ import annotations

from agentobs.determinism.entry import is_command
from replay.fixture.failing_turn import Failure, failure_of
from replay.fixture.fixture_folder import plain_word
from replay.fixture.format import Fixture


def generated_test(fixture: Fixture) -> str:
    """Return the test for a fixture as source. It tests the fix if the session failed, otherwise the complete path.

    The complete path of a command includes its exit code.
    """
    failure = failure_of(fixture)
    if is_command(fixture.header.get("entry")):
        return _command_test(fixture, failure)
    is_callable = fixture.header.get("entry") and fixture.header.get("arguments") is not None
    arguments = "" if is_callable else _PLACEHOLDER
    first_argument = "" if is_callable else f"{_PLACEHOLDER}, "
    about = f"The recorded session {plain_word(fixture.name)}, replayed offline."
    head = '"""{about}"""\n\nimport pytest\n'
    if failure is None:
        test = _SAME_PATH if fixture.until_turn is None else _SAME_PART
        body = test.format(call=arguments, turn=fixture.until_turn)
        return "\n\n".join((head.format(about=about), body))
    about = f"{about}\n\nIt failed in turn {failure.turn}: {failure.reason}.\n"
    reaches = _REACHES.format(call=first_argument, turn=failure.turn)
    fixed = _FIXED.format(
        call=first_argument,
        turn=failure.live_from,
        tools=_tools(failure),
        note=_NAMED_TOOLS if failure.tools else "",
        example=_example(failure),
    )
    return "\n\n".join((head.format(about=about), reaches, fixed))


def _command_test(fixture: Fixture, failure: Failure | None) -> str:
    about = f"The recorded command {plain_word(fixture.name)}, replayed offline."
    if failure is None:
        return f'"""{about}"""\n\nimport pytest\n\n\n{_COMMAND}'
    about = f"{about}\n\nIt failed in turn {failure.turn}: {failure.reason}.\n"
    tests = _FAILED_COMMAND.format(turn=failure.turn, live_from=failure.live_from)
    return f'"""{about}"""\n\nimport pytest\n\n\n{tests}'


def _tools(failure: Failure) -> str:
    """Return the `tools` argument. It names functions, because mutating functions run only if they are named."""
    if not failure.tools:
        return ', tools="live"'
    return f", tools=[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in failure.tools)}]"


def _example(failure: Failure) -> str:
    name = next(iter(failure.tools), failure.tool)
    if name is None:
        return 'assert "the right answer" in str(step.result)'
    return f'assert not step.tool("{name}").is_error'


_PLACEHOLDER = "..."
"""The placeholder in the generated test if the recorded entry cannot be called. The user replaces it with the function
that starts the agent, and its arguments."""

_SAME_PATH = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent sends the recorded requests in order, and ends as recorded."""
    replay.run({call})
'''

_SAME_PART = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent sends the recorded requests up to the one after turn {turn}, where the recording was cut off."""
    replay.run({call})
'''

_COMMAND = '''@pytest.mark.replay_command("recording.jsonl")
def test_same_path(replay_command):
    """The command sends the recorded requests, and ends with the recorded exit code."""
    replay_command()
'''

_FAILED_COMMAND = '''@pytest.mark.replay_command("recording.jsonl")
def test_reaches_the_failure(replay_command):
    """The command sends the recorded requests up to turn {turn}, before and after the fix."""
    replay_command(until_turn={turn}, allow_drift=True)


@pytest.mark.replay_command("recording.jsonl")
def test_fixed(replay_command):
    """From turn {live_from} on, the command differs from the failed session, and it does not fail.

    This test fails until the bug is fixed. The command and its tools run for real, in a copy of the root directory.
    """
    replay_command(until_change={live_from})
'''

_REACHES = '''@pytest.mark.replay("recording.jsonl")
def test_reaches_the_failure(replay):
    """The agent sends the recorded requests up to turn {turn}, before and after the fix."""
    replay.reach({call}turn={turn})
'''

_NAMED_TOOLS = """    # Tools with side effects run only if they are named here. Replace them with test doubles.
"""

_FIXED = '''@pytest.mark.replay("recording.jsonl")
def test_fixed(replay):
    """From turn {turn} on, the agent differs from the failed session, and it does not fail.

    This test fails until the bug is fixed. From that turn on, tools run live; replace the tools that must not run.
    Add an assertion about what the agent must do there, for example: {example}
    """
{note}    step = replay.until_change({call}turn={turn}{tools})
    assert step.differs, step.describe()
    assert not step.failed, step.describe()
'''
