"""Bad files: whatever a file contains, an import ends with one clear error and status 1, and stores nothing of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentobs.errors import AgentobsError
from agentobs.importers.recordings import recording_import
from agentobs.importers.recordings.agent_rewind import rewind_exchanges
from agentobs.importers.recordings.cassettes import cassette_exchanges
from agentobs.importers.recordings.har import har_exchanges
from agentobs.importers.recordings.orca_traces import orca_exchanges
from agentobs.importers.recordings.recording_import import ENDINGS, import_recordings
from agentobs.importers.recordings.stored_exchanges import converted
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import segment_ids
from tests.importers.changed_files import changed
from tests.importers.recorded_agent import (
    cassette,
    har,
    lines,
    orca_events,
    put,
    recorded_pairs,
    rewind_trace,
    run,
)
from tests.marks import mark_all_but_first
from tests.shared_stores import shared_store

PAIRS = recorded_pairs()
GOOD: dict[str, bytes] = {
    "vcr": yaml.dump(cassette(PAIRS)).encode(),
    "har": json.dumps(har(PAIRS)).encode(),
    "agent-rewind": lines(rewind_trace(PAIRS)),
    "orca": lines(orca_events(PAIRS)),
}
MANIFEST = b'{"schema_version": "0.1.0"}'
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file"),
    "binary": (b"\x7fELF\x02\x01\x01" + bytes(200), "binary data"),
    "utf16": (json.dumps(har(PAIRS)).encode("utf-16"), "text in UTF-16; save it as UTF-8"),
    "zip": (b"PK\x03\x04" + bytes(60), "a ZIP archive; unpack it first"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(20), "a gzip file that is truncated or damaged"),
    "html": (b"<!doctype html><p>Not found</p>", "HTML or XML"),
    "latin1": ('{"log": "caf\xe9"}'.encode("latin-1"), ""),
    "deep": (b"[" * 100_000, ""),
}


def file_name(kind: str) -> str:
    ending = ENDINGS[kind][0]  # type: ignore[index]
    return ending if kind == "orca" else f"bad{ending}"


@pytest.mark.parametrize("kind", mark_all_but_first(GOOD, pytest.mark.slow))
def test_bad_files_are_refused(tmp_path: Path, kind: str) -> None:
    """Empty, binary, truncated, wrongly encoded and other files: one line each, and the status is 1."""
    home = open_home(tmp_path / "home")
    others = {
        name: (data, f"agentobs import {name}") for name, data in GOOD.items() if name != kind
    }
    cut = GOOD[kind][: len(GOOD[kind]) * 2 // 3]
    cases = {**BAD, **others, "cut": (cut, "")}
    paths: dict[str, Path] = {}
    for name, (data, _) in cases.items():
        put(tmp_path / name / "manifest.json", MANIFEST)
        paths[name] = put(tmp_path / name / file_name(kind), data)
    result = run(home, "import", kind, *paths.values())
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == "0 sessions imported, 0 already imported"
    errors = result.stderr.splitlines()
    assert len(errors) == len(cases)
    for name, error in zip(cases, errors, strict=True):
        assert error.startswith(f"skipped: {paths[name]}: "), name
        assert cases[name][1] in error, name
    assert segment_ids(home) == []


@pytest.mark.slow
def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a file is limited, before and after decompression."""
    import gzip

    home = open_home(tmp_path / "home")
    monkeypatch.setattr(recording_import, "FILE_BYTES_MAX", 1024 * 1024)
    large = b"interactions: []\n" + b"#" * 2 * 1024 * 1024
    plain, packed = (
        put(tmp_path / "a.yaml", large),
        put(tmp_path / "b.yaml.gz", gzip.compress(large)),
    )
    result = run(home, "import", "vcr", plain, packed)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"skipped: {plain}: larger than 1 MiB",
        f"skipped: {packed}: larger than 1 MiB when decompressed",
    ]


@pytest.mark.slow
def test_missing_and_special_files_are_reported(tmp_path: Path) -> None:
    """A pipe does not block, and a missing path is a usage error."""
    import os

    home = open_home(tmp_path / "home")
    os.mkfifo(tmp_path / "pipe.har")
    result = run(home, "import", "har", tmp_path / "pipe.har")
    assert (result.exit_code, result.stderr) == (
        1,
        f"skipped: {tmp_path}/pipe.har: not a regular file\n",
    )
    missing = run(home, "import", "har", tmp_path / "nothing.har")
    assert "no such file or directory" in str(missing.exception)


@pytest.mark.slow
def test_a_changed_trace_of_orca_is_refused(tmp_path: Path) -> None:
    """The digest of the events in the manifest, and those of payloads in files, are verified."""
    home = open_home(tmp_path / "home")
    manifest = {
        "schema_version": "0.1.0",
        "ended_at": "x",
        "integrity": {"events_sha256": "0" * 64},
    }
    put(tmp_path / "a" / "manifest.json", manifest)
    changed = put(tmp_path / "a" / "events.jsonl", GOOD["orca"])
    put(tmp_path / "b" / "manifest.json", {"schema_version": "1.0.0"})
    newer = put(tmp_path / "b" / "events.jsonl", GOOD["orca"])
    events = orca_events(PAIRS)
    events[2]["payload"] = {
        "$blob": "sha256:" + "0" * 64,
        "bytes": 2,
        "media_type": "application/json",
    }
    put(tmp_path / "c" / "manifest.json", MANIFEST)
    put(tmp_path / "c" / "blobs" / "00" / ("0" * 64), b"{}")
    blob = put(tmp_path / "c" / "events.jsonl", lines(events))
    result = run(home, "import", "orca", changed, newer, blob)
    assert result.exit_code == 1
    found = [line.partition("events.jsonl: ")[2] for line in result.stderr.splitlines()]
    assert [each.partition(".")[0] for each in found] == [
        "events",
        "unsupported format of OrcaReplay: only version 0 can be read",
        "line 3: the payload in blobs/00/"
        + "0" * 64
        + " has changed: its digest differs from its name",
    ]
    assert segment_ids(home) == []


def exchanges_of(kind: str, data: bytes, folder: Path) -> list[Any]:
    """Read a file; only errors of agentobs are allowed."""
    read = {
        "vcr": lambda: cassette_exchanges(data),
        "har": lambda: har_exchanges(data, folder),
        "agent-rewind": lambda: rewind_exchanges(data, folder / "a.rewind"),
        "orca": lambda: orca_exchanges(data, folder),
    }[kind]
    found = []
    with contextlib.suppress(AgentobsError):
        for number, each in enumerate(read()):
            if each is not None and each.goes_to_provider:
                found.append(converted(each, number))
    return found


def parsed(kind: str) -> Any:
    """Return a good file as JSON values."""
    data = GOOD[kind]
    if kind in ("agent-rewind", "orca"):
        return [json.loads(line) for line in data.splitlines()]
    return json.loads(data) if kind == "har" else yaml.safe_load(data)


def encoded(kind: str, value: Any) -> bytes:
    if kind in ("agent-rewind", "orca"):
        return (
            "".join(f"{json.dumps(each)}\n" for each in value).encode()
            if isinstance(value, list)
            else b""
        )
    return json.dumps(value).encode()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose store is open, because each import reads it."""
    home = open_home(tmp_path / "home")
    with shared_store(home.path):
        yield home


@st.composite
def files(draw: st.DrawFn, kind: str) -> bytes:
    """Return a file with a changed value, or with changed bytes."""
    if draw(st.booleans()):
        return encoded(kind, changed(draw, parsed(kind)))
    data = bytearray(GOOD[kind])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 40))] = draw(st.binary(max_size=8))
        if not data:
            break
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOOD)
@given(data=st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_file_causes_another_error(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """Each file is read, or refused with an error of agentobs."""
    put(tmp_path / "manifest.json", MANIFEST)
    exchanges_of(kind, data.draw(files(kind)), tmp_path)


@pytest.mark.parametrize("kind", GOOD)
@given(data=st.data())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_file_causes_an_error_in_an_import(
    home: Home, tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    """Whatever was read can also be stored."""
    put(tmp_path / "manifest.json", MANIFEST)
    path = put(tmp_path / file_name(kind), data.draw(files(kind)))
    report = import_recordings(home, [path], kind, named=[path])  # type: ignore[arg-type]
    assert len(report.files) + len(report.others) + len(report.unreadable) == 1


@pytest.mark.parametrize("kind", GOOD)
def test_good_files_are_read_by_the_same_function(tmp_path: Path, kind: str) -> None:
    """The function of the test above does not refuse everything."""
    put(tmp_path / "manifest.json", MANIFEST)
    assert len(exchanges_of(kind, GOOD[kind], tmp_path)) == 2
    assert len(exchanges_of(kind, encoded(kind, parsed(kind)), tmp_path)) == 2
