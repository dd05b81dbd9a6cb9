"""Failure signatures on recorded traffic and on logs: few alarms, and each was looked at."""

from __future__ import annotations

from tests.write_diagnose import diagnose
from tests.write_docs import ROOT


def test_alarms_are_those_that_were_looked_at() -> None:
    """docs/diagnose.md has every alarm of both corpora, each with what was found there."""
    told = diagnose()
    assert "NOT LOOKED AT" not in told
    assert (ROOT / "docs/diagnose.md").read_text("utf-8") == told
