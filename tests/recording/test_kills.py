"""Killed processes: acknowledged records exist exactly once, and interrupted exchanges are recorded as interrupted."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import Line, content_path, facts_path, read, segment_ids
from agentobs.recording.journal.unfinished_attempts import DRAFT_SUFFIX
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from tests import queries
from tests.agent.provider import Provider, Reply, call, message, streamed, text
from tests.soak.process_kills import kill_ingests_and_prunes, kill_streaming_clients

ROOT = Path(__file__).parents[2]
RUNS = 4
"""The maximum number of runs to get one without a late wait."""
SECRET = "sk-ant-api03-" + "aB3-" * 24


def killed(home: Path, seed: int, kills: int, most: int) -> dict[str, Any]:
    """Kill processes at random points, and check everything that is promised; return the counts."""
    command = [
        sys.executable,
        "-m",
        "tests.soak.kills",
        str(home),
        str(seed),
        str(kills),
        str(most),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    wrong = {name: found[name] for name in ("lost", "doubled", "findings", "errors", "rows")}
    assert not any(wrong.values()), f"seed {seed}: {wrong}"
    assert found["acknowledged"] > 0
    return found


@pytest.mark.crash
def test_twenty_kills(tmp_path: Path) -> None:
    """If three recorders, an ingester and a reader are killed at random points, no record is lost or duplicated, and
    `verify` finds nothing.
    """
    assert killed(tmp_path / "home", 7, kills=20, most=3)["kills"] >= 20


def victim(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "AGENTOBS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.recording.killed_processes", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def lines(home: Path, *, content: bool = False) -> list[Line]:
    place = existing_home(home)
    path_of = content_path if content else facts_path
    found = [line for each in segment_ids(place) for line in read(path_of(place, each))]
    return [line for line in found if isinstance(line, Line)]


def until_written(home: Path, kind: str, *, content: bool) -> None:
    last = time.monotonic() + 30
    while True:
        begun = (home / "segments").is_dir() and list((home / "segments").glob("*.content"))
        if begun and any(line.kind == kind for line in lines(home, content=content)):
            return
        assert time.monotonic() < last, f"no {kind} was written"
        time.sleep(0.02)


def killed_while_streaming(home: Path, sent: Reply) -> tuple[Home, str]:
    """Kill a process with SIGKILL while it reads a response; return its home and the session ID."""
    with Provider([sent]) as provider:
        process = victim(home, "stream", provider.base_url)
        try:
            until_written(home, "partial", content=True)
            until_written(home, f"attempts{DRAFT_SUFFIX}", content=False)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    [line] = [each for each in lines(home) if each.kind == "session_starts"]
    return existing_home(home), line.value()["session_id"]


@pytest.mark.slow
def test_an_interrupted_stream_is_recorded(tmp_path: Path) -> None:
    """If a process is killed during a stream, the request, the usage so far, and all but the last 4 KiB of the response
    are recorded.

    They are in SQL and in the recording. A secret that arrived in several chunks is in no file.
    """
    home = tmp_path / "home"
    blocks = [text(f"{number} " * 40) for number in range(60)]
    answer = message(*blocks[:20], text(f"my key is {SECRET} "), *blocks[20:])
    sent = streamed(answer, hold=threading.Event())
    place, session_id = killed_while_streaming(home, sent)
    with connect(home) as connection:
        sql = "SELECT outcome, status, model_requested, request_bytes > 0 FROM attempts"
        assert connection.execute(sql).fetchall() == [("crashed", 200, "claude-sonnet-5", True)]
        used = "SELECT input_tokens, certainty FROM usage"
        assert connection.execute(used).fetchall() == [(10, "lower_bound")]
        [crash] = connection.execute(
            "SELECT session_id, open_requests, last_activity_ns > started_ns FROM crashes"
        ).fetchall()
    assert crash == (session_id, 1, True)
    recording = read_session(place, session_id, segment_ids(place))
    [exchange] = recording.exchanges
    assert isinstance(exchange, ModelExchange)
    assert (recording.outcome, exchange.answer.ending, exchange.answer.status) == (
        "crashed",
        "cut",
        200,
    )
    assert json.loads(exchange.question.body)["messages"][0]["content"] == "Hello"
    recorded_bytes, sent_bytes = exchange.answer.body, b"".join(sent.chunks)
    first = sent_bytes.index(b"my key is")
    assert recorded_bytes[:first] == sent_bytes[:first]
    missing = re.findall(rb'"text": "([^"]*)"', sent_bytes[len(recorded_bytes) :])
    assert sum(map(len, missing)) < 4096 + 1024, "the last 4 KiB of text, and one event"
    assert recorded_bytes.endswith(b"\n\n")
    for path in home.rglob("*"):
        assert not path.is_file() or SECRET[13:40].encode() not in path.read_bytes()
    for _ in range(2):
        ingest(place)
        assert queries.query("SELECT count(*) FROM attempts", home=home) == [(1,)]
        assert [
            str(each)
            for each in verify(place).findings
            if "not a complete record" not in each.found
        ] == []


def test_a_response_is_recorded_before_its_tool_runs(tmp_path: Path) -> None:
    """If a tool kills its process, the journal contains the call that started the tool, even without a flush.

    A run whose wait for the disk was too short proves nothing, so one of several runs must be in time.
    """
    for number in range(RUNS):
        home, effect = tmp_path / f"home-{number}", tmp_path / f"effect-{number}"
        with Provider([streamed(message(call("toolu_a", "effect")))]) as provider:
            process = victim(home, "tool", provider.base_url, str(effect))
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, effect.read_text()) == (-9, "done")
        if "late 0" in output:
            calls = [
                each.value()["tool_use_id"] for each in lines(home) if each.kind == "tool_uses"
            ]
            assert calls == ["toolu_a"]
            return
    raise AssertionError(f"all of {RUNS} runs were late")


@pytest.mark.crash
def test_kills_during_streams(tmp_path: Path) -> None:
    """If clients are killed during streams, each acknowledged response is recorded exactly once."""
    kill_streaming_clients(tmp_path / "home", random.Random(1), kills=2)


@pytest.mark.crash
def test_kills_during_ingest_and_prune(tmp_path: Path) -> None:
    """Wherever an ingest or a prune is killed, nothing is damaged, and the next ingest completes its work."""
    kill_ingests_and_prunes(tmp_path, random.Random(2), kills=3)
