"""Reviewed labels are short, printable and have a reason."""

from __future__ import annotations

import pytest

from agentobs.records.labels import REVIEWED_CHARACTERS, Label


@pytest.mark.parametrize("text", ["", "x" * (REVIEWED_CHARACTERS + 1), "two\nlines"])
def test_an_invalid_reviewed_text_is_refused(text: str) -> None:
    """An empty text, one that is too long, and one with control characters cannot be reviewed labels."""
    with pytest.raises(ValueError, match=f"this text has {len(text)}"):
        Label.reviewed(text, reason="it is a constant")


@pytest.mark.parametrize("text", ["x", "a b (c)", "x" * REVIEWED_CHARACTERS])
def test_a_reviewed_text_is_a_label(text: str) -> None:
    """A text of one character up to the maximum is a label, if there is a reason."""
    assert Label.reviewed(text, reason="it is a constant") == text
    with pytest.raises(ValueError, match="needs a reason"):
        Label.reviewed(text, reason=" ")
