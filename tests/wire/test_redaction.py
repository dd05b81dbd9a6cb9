"""Redaction does not change recorded traffic, except at the places that docs/redaction.md lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.recording.vault.stream_secrets import find_in_answer
from tests.wire import corpus

DOCUMENT = Path(__file__).parents[2] / "docs" / "redaction.md"


def listed_places() -> list[tuple[str, str, str]]:
    """Return the rows of the last table in the document."""
    table = DOCUMENT.read_text().rpartition("| --- | --- | --- |\n")[2]
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()
    ]
    return [(row[0], row[1], row[2]) for row in rows if row[0] != "none"]


@pytest.mark.parametrize("batch", range(corpus.BATCHES))
def test_real_traffic_is_not_redacted(batch: int) -> None:
    """No request and no response contains text that looks like a secret, except at the listed places; chunks are joined
    first.
    """
    files = corpus.batch(batch)
    assert files
    found = [
        (file.name, each.kind, f"byte {each.start}")
        for file in files
        for body in (
            file.path.read_bytes(),
            *(e.text.encode("utf-8", "surrogatepass") for e in file.exchanges),
        )
        for each in find_in_answer(body)
    ]
    names = {file.name for file in files}
    assert sorted(found) == sorted(row for row in listed_places() if row[0] in names)
