"""Tags of secrets, custom redaction rules, and texts that cannot be searched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentobs
from agentobs import world
from agentobs.errors import RecordingError, UsageError
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.redaction import FAILED, Redactor, Rule, expression
from agentobs.redaction.user_rules import BUDGET_NS, OVERRUNS_MAX, STEPS_MAX
from replay.freeze.conversion import freeze
from tests.provider_script import script
from tests.replay.agents import Agent, answers, last_session

TOKEN = b"ghp_" + b"Zz9" * 12
OTHER = b"ghp_" + b"Yy8" * 12


def test_equal_secrets_have_equal_tags_in_a_home() -> None:
    """In a home, equal secrets have equal tags, and different secrets have different tags; homes with different keys
    have different tags.
    """
    mine, theirs = Redactor(b"k" * 32), Redactor(b"l" * 32)
    one, again, other = (
        mine.find(text)[0].tag for text in (b"a " + TOKEN, b'{"x":"' + TOKEN + b'"}', OTHER)
    )
    assert one == again
    assert len({one, other, theirs.find(TOKEN)[0].tag}) == 3
    assert mine.redact(b"x " + TOKEN) == b"x [redacted:github_token:%b]" % one.encode()
    assert mine.find(mine.redact(TOKEN + b" " + OTHER)) == []
    assert "k" * 32 not in repr(mine)


def test_a_private_key_has_one_tag_however_it_is_escaped() -> None:
    """A private key has the same tag with plain, escaped and doubly escaped line ends."""
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIB\n" * 9 + "-----END PRIVATE KEY-----"
    texts = [key, json.dumps({"k": key}), json.dumps(json.dumps(key))]
    assert len({Redactor(b"k").find(text.encode())[0].tag for text in texts}) == 1


def test_a_custom_rule_redacts_what_it_finds() -> None:
    """What a custom rule finds is redacted with its kind and a tag; the findings of built-in kinds keep their kind."""

    def staff(text: bytes) -> Iterator[tuple[int, int, str]]:
        at = text.find(b"staff-")
        while at != -1:
            yield at, at + 10, "staff_number"
            at = text.find(b"staff-", at + 1)

    redactor = Redactor(rules=[staff, expression("ticket", rb"ticket ([0-9]{4,8})")])
    redacted = redactor.redact(b"staff-0001 has ticket 123456 and " + TOKEN)
    assert (
        redacted
        == b"[redacted:staff_number] has ticket [redacted:ticket] and [redacted:github_token]"
    )
    assert redactor.find(b"staff-0001 staff-0002", start=5)[0].start == 11
    long = b"x" * 10_000 + b"ticket 123456" + b"x" * 10_000
    assert redactor.redact(long) == long.replace(b"123456", b"[redacted:ticket]")


@pytest.mark.parametrize(
    "pattern",
    [
        rb"a+",
        rb"(a{1,9}){1,9}",
        rb"a{0,200}a{0,200}b",
        rb"(a|a){1,20}b",
        rb".*",
        rb"(",
        rb"(a)\1",
        rb"a{9000}",
    ],
)
def test_an_unbounded_expression_is_rejected(pattern: bytes) -> None:
    """An unbounded expression is rejected before anything is recorded, and the error states what to write instead."""
    with pytest.raises(UsageError) as caught:
        expression("kind", pattern)
    assert caught.value.where == repr(pattern)
    with pytest.raises(
        UsageError, match="a kind must consist of 1 to 40 lowercase letters, digits and _"
    ):
        expression("No Kind", rb"a")


@pytest.mark.parametrize(
    "pattern", [rb"[0-9]{6}", rb"emp-[A-Z]{2,3}[0-9]{1,9}+", rb"(?:ab|cd){3}x?"]
)
def test_a_bounded_expression_is_accepted(pattern: bytes) -> None:
    """Bounded expressions, such as typical ones for customer or order numbers, are accepted."""
    assert STEPS_MAX == 4096
    assert list(expression("kind", pattern)(b"- 123456 emp-XY12 ababab"))


def raising(text: bytes) -> Iterator[tuple[int, int, str]]:
    raise ValueError("broken")


def outside(text: bytes) -> Iterator[tuple[int, int, str]]:
    yield 0, len(text) + 1, "kind"


def unnamed(text: bytes) -> Iterator[tuple[int, int, str]]:
    yield 0, 1, "Kind with blanks"


@pytest.mark.parametrize("rule", [raising, outside, unnamed])
def test_a_failing_rule_removes_the_text(rule: Rule) -> None:
    """If a custom rule raises an error, no part of the text is written, and the failure is counted."""
    redactor = Redactor(rules=[rule])
    assert redactor.redact(b"what was said") == FAILED
    assert redactor.redact(b"") == b""
    assert redactor.redact(b"more") == FAILED
    assert redactor.failed == 3


def test_a_slow_rule_removes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a custom rule takes too long, the text is removed; after three timeouts, the rule is no longer called."""
    clock, calls = [0], []

    def slow(text: bytes) -> Iterator[tuple[int, int, str]]:
        calls.append(text)
        clock[0] += BUDGET_NS + 1
        yield 0, 1, "kind"

    monkeypatch.setattr(world, "monotonic", lambda: clock[0])
    redactor = Redactor(rules=[slow])
    assert [redactor.redact(b"text") for _ in range(5)] == [FAILED] * 5
    assert len(calls) == OVERRUNS_MAX
    assert redactor.failed == 5


def test_a_session_continues_if_redaction_fails(tmp_path: Path) -> None:
    """If redaction fails, texts are replaced, the recorder counts the failures, and the session continues but cannot be
    frozen.
    """
    agentobs.stop_recorder()

    def broken(text: bytes) -> Iterator[tuple[int, int, str]]:
        if b"Oslo" in text:
            raise RecursionError
        return iter(())

    with ServedProvider(script(*answers()), ServeOptions(match="order")) as provider:
        recorder = start_recorder(str(tmp_path), Options(redactors=(broken,)))
        assert recorder is not None
        assert Agent(provider.url).answer("How is it?") == "Oslo is wet."
        assert agentobs.stop_recorder()
    assert recorder.statistics().unredacted >= 4
    assert recorder.statistics().dropped == 0
    session = last_session(tmp_path)
    bodies = [each.question.body for each in session.exchanges if hasattr(each.question, "body")]
    assert [body == FAILED for body in bodies] == [False, True, True]
    assert b"Oslo" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*.content"))
    with pytest.raises(RecordingError, match="could not be searched"):
        freeze(session, tmp_path / "frozen", {})
