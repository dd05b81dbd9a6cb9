"""Bad lines in logs of Claude Code: no line causes an error, whatever it contains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentobs.importers.claude_code.session_records import rebuild
from agentobs.importers.claude_code.transcript_entries import Entry, OtherLine, read_log
from tests.importers.changed_files import changed
from tests.importers.recorded_agent import put
from tests.importers.test_claude_code_requests import SESSION, main_log

GOOD = main_log().lines


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Return a log with changed values, or with changed bytes."""
    if draw(st.booleans()):
        values = changed(draw, GOOD)
        found = values if isinstance(values, list) else [values]
        return "".join(f"{json.dumps(each)}\n" for each in found).encode()
    data = bytearray("".join(f"{json.dumps(each)}\n" for each in GOOD).encode())
    at = draw(st.integers(0, len(data) - 1))
    data[at : at + draw(st.integers(0, 40))] = draw(st.binary(max_size=8))
    return bytes(data)


def records_of(path: Path) -> int:
    """Read a log and create the records of its session; return their number."""
    entries: list[Entry] = []
    others: list[OtherLine] = []
    for each in read_log(path):
        if isinstance(each, Entry) and each.session_id == SESSION:
            entries.append(each)
        elif isinstance(each, OtherLine) and each.session_id == SESSION:
            others.append(each)
    rebuilt = rebuild(SESSION, entries, others=others)
    return len(list(rebuilt.records)) if rebuilt is not None else 0


@pytest.mark.slow
@given(log=logs())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_line_causes_an_error(tmp_path: Path, log: bytes) -> None:
    """Each log is imported without its bad lines."""
    records_of(put(tmp_path / "log.jsonl", log))


def test_the_good_log_has_records(tmp_path: Path) -> None:
    """The function of the test above creates records."""
    data = "".join(f"{json.dumps(each)}\n" for each in GOOD)
    assert records_of(put(tmp_path / "log.jsonl", data)) > 10
