"""Exchanges: what their texts for a programmer hide."""

from __future__ import annotations

from agentobs.records.exchanges import Origin, Question


def test_the_text_of_a_caller_hides_the_arguments() -> None:
    """The text of the origin of a request names the attempt, and contains no argument of the caller's functions."""
    origin = Origin("a1", (("answer", "question", "a secret"),), None, job="a secret job")
    assert repr(origin) == "Origin(attempt_id='a1')"
    question = Question("POST", "/v1/messages", {}, b"a secret", (b"a secret",), origin)
    assert "secret" not in repr(question)
