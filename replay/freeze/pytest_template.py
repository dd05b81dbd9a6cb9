"""The test that `freeze` writes next to a fixture.

It is a function of the fixture alone, so that `freeze` recognizes a test that nobody edited and can replace it. Only
labels of the recording enter it: no text of a session becomes code.
"""

from __future__ import annotations

from replay.fixture.failing_turn import Failure, failure_of
from replay.fixture.fixture_folder import word
from replay.fixture.format import Fixture


def test_of(fixture: Fixture) -> str:
    """Return the test of a fixture: of the fix for a session that failed, else of the whole path."""
    failure = failure_of(fixture)
    known = fixture.header.get("entry") and fixture.header.get("arguments") is not None
    alone = "" if known else _HOW
    first = "" if known else f"{_HOW}, "
    about = f"The recorded session {word(fixture.name)}, replayed offline."
    head = '"""{about}"""\n\nimport pytest\n'
    if failure is None:
        test = _SAME_PATH if fixture.until_turn is None else _SAME_PART
        body = test.format(how=alone, turn=fixture.until_turn)
        return "\n\n".join((head.format(about=about), body))
    about = f"{about}\n\nIt failed in turn {failure.turn}: {failure.reason}.\n"
    reaches = _REACHES.format(how=first, turn=failure.turn)
    fixed = _FIXED.format(
        how=first,
        turn=failure.live_from,
        tools=_tools(failure),
        why=_NAMED if failure.tools else "",
        example=_example(failure),
    )
    return "\n\n".join((head.format(about=about), reaches, fixed))


def _tools(failure: Failure) -> str:
    """Return the `tools` argument; functions are named, because those that change external state only run by name."""
    if not failure.tools:
        return ', tools="live"'
    return f", tools=[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in failure.tools)}]"


def _example(failure: Failure) -> str:
    name = next(iter(failure.tools), failure.tool)
    if name is None:
        return 'assert "the right answer" in str(step.result)'
    return f'assert not step.tool("{name}").is_error'


_HOW = "..."
"""The placeholder if the recorded entry cannot be called: the user replaces it with the function that starts the
agent, and its arguments."""

_SAME_PATH = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent makes the recorded requests, step by step, and ends as recorded."""
    replay.run({how})
'''

_SAME_PART = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent makes the recorded requests up to the one after turn {turn}, where the recording was cut off."""
    replay.run({how})
'''

_REACHES = '''@pytest.mark.replay("recording.jsonl")
def test_reaches_the_failure(replay):
    """The agent makes the recorded requests up to turn {turn}, before the fix and after it."""
    replay.reach({how}turn={turn})
'''

_NAMED = """    # By name, because a tool that changes something outside runs only if it is named: use a stand-in here.
"""

_FIXED = '''@pytest.mark.replay("recording.jsonl")
def test_fixed(replay):
    """From turn {turn} on the agent differs from the session that failed, and does not fail.

    Red until the bug is fixed. From that turn on the tools run live: replace those that must not.
    Add what the agent must do there, for example: {example}
    """
{why}    step = replay.until_change({how}turn={turn}{tools})
    assert step.differs, step.describe()
    assert not step.failed, step.describe()
'''
