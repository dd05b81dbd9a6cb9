"""Failure signatures in recorded traffic and in logs: there are few findings, and each finding was reviewed."""

from __future__ import annotations

import pytest

from tests.write_diagnose import diagnose
from tests.write_docs import ROOT


@pytest.mark.slow
def test_all_findings_were_reviewed() -> None:
    """docs/diagnose.md lists every finding in both corpora, with the result of its review."""
    document = diagnose()
    assert "NOT REVIEWED" not in document
    assert (ROOT / "docs/diagnose.md").read_text("utf-8") == document
