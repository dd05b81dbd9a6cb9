"""HAR files: what browsers and proxies leave out, encode or split is read, or the session states what is missing."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.records.exchanges import ModelExchange
from agentobs.store.duckdb.connection import connect
from tests.importers.recorded_agent import (
    TEXTS,
    Pair,
    base64_text,
    har,
    put,
    recorded_pairs,
    recording_of,
    replayed,
    run,
    session_of,
)
from tests.marks import mark_all_but_first

PAIRS = recorded_pairs()
STREAMED = recorded_pairs(stream=True)


def contents(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `content` of the responses to the agent."""
    return [each["response"]["content"] for each in value["log"]["entries"][2:]]


def imported(tmp_path: Path, value: Any) -> tuple[Home, str]:
    """Import a HAR file; return the home and the output."""
    home = open_home(tmp_path / "home")
    result = run(home, "import", "har", put(tmp_path / "agent.har", value))
    assert result.exit_code == 0, result.output
    return home, result.output


def bodies(home: Home) -> list[bytes]:
    exchanges = recording_of(home).exchanges
    return [each.answer.body for each in exchanges if isinstance(each, ModelExchange)]


def in_base64(value: dict[str, Any], pairs: list[Pair]) -> None:
    for content, pair in zip(contents(value), pairs, strict=True):
        content |= {"encoding": "base64", "text": base64_text(pair.response_body)}


def in_gzip(value: dict[str, Any], pairs: list[Pair]) -> None:
    """Charles and some proxies store the bytes of the wire."""
    for content, pair in zip(contents(value), pairs, strict=True):
        content |= {"encoding": "base64", "text": base64_text(gzip.compress(pair.response_body))}
    decoded(value, pairs)


def decoded(value: dict[str, Any], pairs: list[Pair]) -> None:
    """mitmproxy and browsers decode the body, and keep the header."""
    for each in value["log"]["entries"]:
        each["response"]["headers"].append({"name": "Content-Encoding", "value": "gzip"})


def in_brotli(value: dict[str, Any], pairs: list[Pair]) -> None:
    import brotli

    for content, pair in zip(contents(value), pairs, strict=True):
        content |= {"encoding": "base64", "text": base64_text(brotli.compress(pair.response_body))}
    for each in value["log"]["entries"]:
        each["response"]["headers"].append({"name": "content-encoding", "value": "br"})


def in_chunks(value: dict[str, Any], pairs: list[Pair]) -> None:
    """Some proxies store the sizes of HTTP chunks as a part of the body."""
    for content, pair in zip(contents(value), pairs, strict=True):
        body = pair.response_body
        parts = [body[at : at + 100] for at in range(0, len(body), 100)]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        content |= {"encoding": "base64", "text": base64_text(framed)}
    for each in value["log"]["entries"]:
        each["response"]["headers"].append({"name": "Transfer-Encoding", "value": "chunked"})


@pytest.mark.slow
@pytest.mark.parametrize("change", [in_base64, in_gzip, decoded, in_brotli, in_chunks])
@pytest.mark.parametrize("pairs", [PAIRS, STREAMED], ids=["whole", "stream"])
def test_bodies_are_decoded(tmp_path: Path, change: Any, pairs: list[Pair]) -> None:
    """Each way in which tools store a body gives the decoded body, byte for byte."""
    value = har(pairs)
    change(value, pairs)
    home, output = imported(tmp_path, value)
    assert "2 exchanges, replayable" in output
    assert bodies(home) == [pair.response_body for pair in pairs]


@pytest.mark.slow
def test_events_of_a_stream_replace_its_body(tmp_path: Path) -> None:
    """Chrome stores the events of a stream in a separate list, and may leave out the body."""
    value = har(STREAMED)
    for each, pair in zip(value["log"]["entries"][2:], STREAMED, strict=True):
        del each["response"]["content"]["text"]
        events = pair.response_body.decode().removesuffix("\n\n").split("\n\n")
        each["_eventSourceMessages"] = [
            {
                "time": 1.5,
                "eventName": event.split("\n")[0][7:],
                "eventId": "",
                "data": event.split("\n")[1][6:],
            }
            for event in events
        ]
    home, output = imported(tmp_path, value)
    assert "2 exchanges, replayable" in output
    assert bodies(home) == [pair.response_body for pair in STREAMED]
    assert replayed(home, tmp_path / "fixture", stream=True) == TEXTS


@pytest.mark.slow
def test_bodies_in_files_are_read(tmp_path: Path) -> None:
    """Playwright can store bodies as files; its mode `minimal` has neither times nor sizes nor a page."""
    value = har(PAIRS)
    for number, (content, pair) in enumerate(zip(contents(value), PAIRS, strict=True)):
        del content["text"]
        content["_file"] = f"{number}f00.json"
        put(tmp_path / f"{number}f00.json", pair.response_body)
    for each in value["log"]["entries"]:
        del each["timings"], each["request"]["bodySize"]
        each["time"] = -1
    del value["log"]["pages"]
    home, _ = imported(tmp_path, value)
    assert replayed(home, tmp_path / "fixture", stream=False) == TEXTS


@pytest.mark.slow
def test_a_body_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    """The name of a body's file cannot lead to another folder."""
    home = open_home(tmp_path / "home")
    put(tmp_path / "secret.json", b"{}")
    for name in ("../secret.json", "/etc/passwd", "a/b.json", "..", ""):
        value = har(PAIRS)
        contents(value)[0]["_file"] = name
        result = run(home, "import", "har", put(tmp_path / "inside" / "agent.har", value))
        assert result.exit_code == 1, name
        assert "entry 3: a body whose file is not in the folder of the HAR file" in result.stderr


@pytest.mark.parametrize(
    "content",
    mark_all_but_first(
        [
            {"size": 512, "mimeType": "application/json"},
            {"size": 512, "mimeType": "", "text": ""},
            {"mimeType": "x"},
            {},
        ],
        pytest.mark.slow,
    ),
)
def test_missing_response_bodies_are_reported(tmp_path: Path, content: dict[str, Any]) -> None:
    """A response without its body has a cost of at least 0; the session is marked as incomplete and cannot be
    frozen.
    """
    value = har(PAIRS)
    value["log"]["entries"][3]["response"]["content"] = content
    home, output = imported(tmp_path, value)
    assert "2 exchanges, not replayable: 1 response bodies are missing" in output
    session = session_of(home)
    assert (session["incomplete"], session["dropped"]) == (True, 1)
    assert session["tags"] == {"imported": "har", "missing_response_bodies": "1"}
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT input_tokens, cost_status FROM costs ORDER BY 1"
        ).fetchall()
    assert rows == [(0, "lower_bound"), (1000, "exact")]
    frozen = run(home, "freeze", "agent", "-o", tmp_path / "fixture")
    assert "incomplete" in str(frozen.exception)


@pytest.mark.slow
def test_missing_request_bodies_are_reported(tmp_path: Path) -> None:
    """A request without its body still has a cost; the session cannot be replayed."""
    value = har(PAIRS)
    del value["log"]["entries"][2]["request"]["postData"]
    home, output = imported(tmp_path, value)
    assert "2 exchanges, not replayable: 1 request bodies are missing" in output
    session = session_of(home)
    assert session["tags"] == {"imported": "har", "missing_request_bodies": "1"}
    assert (str(session["cost_usd"]), session["incomplete"]) == ("0.006300000000", True)


@pytest.mark.slow
def test_requests_without_a_response_are_attempts(tmp_path: Path) -> None:
    """A canceled request (Chrome: status 0) is an attempt without a response, and costs nothing that was seen."""
    value = har(PAIRS)
    canceled = copy.deepcopy(value["log"]["entries"][2])
    canceled["response"] = {
        "status": 0, "statusText": "", "headers": [], "cookies": [], "content": {"size": 0, "mimeType": "x-unknown"},
        "_error": "net::ERR_ABORTED",
    }  # fmt: skip
    failed = copy.deepcopy(canceled)
    failed["response"]["_error"] = "net::ERR_CONNECTION_REFUSED"
    value["log"]["entries"][2:2] = [canceled, failed]
    home, output = imported(tmp_path, value)
    assert "4 exchanges, replayable" in output
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT outcome, status FROM attempts ORDER BY outcome"
        ).fetchall()
    assert rows == [("cancelled", None), ("no_response", None), ("ok", 200), ("ok", 200)]


@pytest.mark.slow
def test_concurrent_requests_keep_their_times(tmp_path: Path) -> None:
    """Requests are ordered by their ends, and each keeps its own start."""
    value = har(PAIRS)
    first, second = value["log"]["entries"][2:]
    first |= {"startedDateTime": "2026-02-04T01:00:00.000+01:00", "time": 9000.0}
    second |= {"startedDateTime": "2026-02-04T00:00:01.000Z", "time": 1000.0}
    home, _ = imported(tmp_path, value)
    with connect(home) as connection:
        sql = "SELECT epoch_ms(make_timestamp_ns(started_ns)), duration_ns // 1000000 FROM attempts ORDER BY started_ns"
        rows = connection.execute(sql).fetchall()
    assert [(at % 86_400_000, ms) for at, ms in rows] == [(0, 9000), (1000, 1000)]


@pytest.mark.slow
def test_a_har_file_is_recognized_by_the_import_of_exchanges(tmp_path: Path) -> None:
    """`import wire` names the right command once, and does not print one line for each line of the file."""
    home = open_home(tmp_path / "home")
    path = put(tmp_path / "agent.har", json.dumps(har(PAIRS), indent=2))
    result = run(home, "import", "wire", path)
    assert result.exit_code == 1
    assert result.stderr == f"skipped: {path}: a HAR file. Run: agentobs import har\n"
    assert segment_ids(home) == []


@pytest.mark.slow
def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Some tools on Windows write a byte order mark."""
    home = open_home(tmp_path / "home")
    data = b"\xef\xbb\xbf" + json.dumps(har(PAIRS)).encode()
    assert run(home, "import", "har", put(tmp_path / "agent.har", data)).exit_code == 0
