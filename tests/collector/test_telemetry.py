"""Telemetry in the store: differences from recorded requests, privacy, and the commands that receive it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

import agentobs
from agentobs.collector.collected_sessions import Comparison, compared
from agentobs.collector.telemetry_events import NUMBERS, NUMBERS_MAX
from agentobs.recording.journal.home import Home
from agentobs.store.backend import open_store
from tests.cli.test_commands import Shell
from tests.collector.telemetry import (
    CLIENT_SESSION,
    api_request,
    attributes,
    collecting,
    counter,
    log,
    logs,
    send,
    span,
    spans,
)
from tests.provider_script import cut, streamed, text
from tests.proxy.proxies import VERSION, proxied
from tests.replay.raw_provider import SSE, play, raw_provider

BODY = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
}


def rows(home: Path, query: str) -> list[Any]:
    with agentobs.connect(str(home)) as store:
        return store.sql(query).fetchall()


def record_requests(home: Path, number: int) -> float:
    """Record requests of the client session through a proxy, and return the cost of one of them."""
    answers = [play(streamed(text("Hi"), number=each)) for each in range(1, number + 1)]
    with raw_provider(answers) as provider, proxied(provider.url, home) as proxy:
        headers = {**VERSION, "x-claude-code-session-id": CLIENT_SESSION}
        for _ in range(number):
            httpx2.post(f"{proxy.url}/v1/messages", json=BODY, headers=headers)
        proxy.recordings()
    [(usd,)] = rows(home, "SELECT DISTINCT cost_usd FROM call_costs")
    return float(usd)


@pytest.mark.slow
def test_differences_from_recorded_requests(tmp_path: Path) -> None:
    """Requests are joined by session and request ID; requests about which both agree have no rows."""
    usd = record_requests(tmp_path, 4)
    tokens = rows(
        tmp_path,
        "SELECT DISTINCT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens FROM call_costs",
    )[0]
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens")
    counts = dict(zip(names, tokens, strict=True))
    with collecting(tmp_path) as collector:
        records = [
            api_request("req_1", usd, **counts),
            api_request("req_2", usd + 0.5, **counts),
            api_request("req_3", usd, **{**counts, "output_tokens": tokens[1] + 1}),
            api_request("req_9", 0.25, **counts),
        ]
        assert send(collector.url, "/v1/logs", logs(*records)).status_code == 200
        other = log("user_prompt", session__id="2ae82282-bc28-429c-8dac-000000000000")
        assert send(collector.url, "/v1/logs", logs(other)).is_success
    columns = "request_id, difference, difference_usd::DOUBLE, telemetry_output_tokens - recorded_output_tokens"
    assert rows(tmp_path, f"SELECT {columns} FROM telemetry_differences") == [
        ("req_2", "cost", 0.5, 0),
        ("req_9", "only in telemetry", None, None),
        ("req_4", "only recorded", None, None),
        ("req_3", "tokens", 0.0, 1),
    ]
    # Telemetry is not counted as a session's own requests.
    assert rows(tmp_path, "SELECT sum(turns), count(*) FROM sessions WHERE turns > 0") == [(4, 1)]


@pytest.mark.slow
def test_a_request_that_failed_is_no_difference(tmp_path: Path) -> None:
    """The telemetry of a request that failed has the request ID of its last attempt, and no cost."""
    with collecting(tmp_path) as collector:
        failed = log("api_error", request_id="req_1", status_code=529, attempt=3)
        assert send(collector.url, "/v1/logs", logs(failed)).is_success
        request = spans(span("llm_request", request_id="req_1", success=False, status_code=529))
        assert send(collector.url, "/v1/traces", request).is_success
    assert rows(tmp_path, "SELECT count(*) FROM telemetry") == [(2,)]
    assert rows(tmp_path, "FROM telemetry_comparison") == []


@pytest.mark.slow
def test_a_part_of_a_client_session_without_telemetry(tmp_path: Path) -> None:
    """If a client session is recorded twice, only the recorded session from the time with telemetry is compared."""
    record_requests(tmp_path, 2)
    record_requests(tmp_path, 1)
    [(first, _), (second, started_ns)] = rows(
        tmp_path, "SELECT session_id, started_ns FROM session_starts ORDER BY started_ns"
    )
    with collecting(tmp_path) as collector:
        prompt = {**log("user_prompt"), "timeUnixNano": str(started_ns)}
        assert send(collector.url, "/v1/logs", logs(prompt)).is_success
    query = "SELECT session_id, difference FROM telemetry_differences"
    assert rows(tmp_path, query) == [(second, "only recorded")]
    # Later, the telemetry of the first part arrives.
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(api_request("req_2"))).is_success
    [(_, earliest)] = rows(
        tmp_path,
        f"SELECT count(*), min(request_id) FROM telemetry_comparison WHERE session_id = '{first}'",
    )
    assert earliest == "req_1"


@pytest.mark.slow
def test_a_response_without_a_request_id_cannot_be_compared(tmp_path: Path) -> None:
    """The request is listed as such, and the summary does not count it as different."""
    answer = dataclasses.replace(streamed(text("Hi")), headers=dict(SSE))
    with raw_provider([play(answer)]) as provider, proxied(provider.url, tmp_path) as proxy:
        headers = {**VERSION, "x-claude-code-session-id": CLIENT_SESSION}
        httpx2.post(f"{proxy.url}/v1/messages", json=BODY, headers=headers)
        proxy.recordings()
    [(session_id, at_ns)] = rows(tmp_path, "SELECT session_id, started_ns FROM session_starts")
    with collecting(tmp_path) as collector:
        record = {**log("api_request", cost_usd=0.1), "timeUnixNano": str(at_ns)}
        assert send(collector.url, "/v1/logs", logs(record)).is_success
    assert rows(tmp_path, "SELECT difference FROM telemetry_differences") == [("no request ID",)]
    found = compared(Home(tmp_path), [session_id], [CLIENT_SESSION], 0)
    assert found == Comparison(requests=1, differences=0, unidentified=1)


@pytest.mark.slow
def test_a_response_that_was_cut_off_is_only_recorded(tmp_path: Path) -> None:
    """Claude Code reports no cost of a response that it gave up; the provider bills what it had sent."""
    answers = [play(cut(streamed(text("Hi"), number=1), 3)), play(streamed(text("Hi"), number=2))]
    with raw_provider(answers) as provider, proxied(provider.url, tmp_path) as proxy:
        headers = {**VERSION, "x-claude-code-session-id": CLIENT_SESSION}
        with pytest.raises(httpx2.RemoteProtocolError):
            httpx2.post(f"{proxy.url}/v1/messages", json=BODY, headers=headers)
        httpx2.post(f"{proxy.url}/v1/messages", json=BODY, headers=headers)
        proxy.recordings()
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(api_request("req_2"))).is_success
    query = "SELECT request_id, recorded_usd > 0 FROM telemetry_differences WHERE difference = 'only recorded'"
    assert rows(tmp_path, query) == [("req_1", True)]


@pytest.mark.slow
def test_numbers_that_are_too_large_are_unknown(tmp_path: Path) -> None:
    """Any program can send them; they do not break the views."""
    record_requests(tmp_path, 1)
    with collecting(tmp_path) as collector:
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens")
        record = api_request("req_1", 1e300, **dict.fromkeys(names, 1e300))
        assert send(collector.url, "/v1/logs", logs(record)).is_success
        long = {**span("tool"), "startTimeUnixNano": "1", "endTimeUnixNano": str(2**64 - 1)}
        assert send(collector.url, "/v1/traces", spans(long)).is_success
    assert rows(tmp_path, "SELECT duration_ns FROM telemetry WHERE signal = 'span'") == [(None,)]
    columns = "difference, telemetry_usd, telemetry_input_tokens"
    assert rows(tmp_path, f"SELECT {columns} FROM telemetry_comparison") == [(None, None, None)]


@pytest.mark.slow
def test_lists_of_sessions_leave_telemetry_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sessions with telemetry are listed only on request, and the doctor does not take them for empty ones."""
    record_requests(tmp_path, 1)
    with collecting(tmp_path) as collector:
        other = log("user_prompt")
        other["attributes"] = other["attributes"][1:]  # without the client's ID
        late = {**log("user_prompt"), "timeUnixNano": str(2**61)}
        records = (late, api_request("req_1"), other)
        assert send(collector.url, "/v1/logs", logs(*records)).is_success
    query = "SELECT max(last_activity_ns) < 2000000000000000000 FROM sessions"
    assert rows(tmp_path, query) == [(True,)]
    shell = Shell(tmp_path, capsys)
    [listed] = json_lines(shell("sessions", "--json").out)
    assert (listed["turns"], listed["is_telemetry"]) == (1, False)
    every = json_lines(shell("sessions", "--json", "--telemetry").out)
    assert sorted(each["is_telemetry"] for each in every) == [False, True, True]
    found = shell("doctor").out
    assert "completed without a recorded request" not in found
    assert "the wall clock did not jump" in found
    assert "telemetry" in shell("show", "telemetry").out
    with open_store(Home(tmp_path)) as store:
        [day] = store.rows("sessions_by_day").rows
    assert day[1] == 1


@pytest.mark.slow
def test_telemetry_with_wrong_times_is_pruned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time in the distant future is replaced by the time of receipt, so that old telemetry can be deleted."""
    with collecting(tmp_path) as collector:
        late = [{**log("user_prompt"), "timeUnixNano": str(each)} for each in (2**61, 2**64 - 1)]
        assert send(collector.url, "/v1/logs", logs(*late)).is_success
    query = "SELECT max(at_ns) <= max(ended_ns) FROM telemetry JOIN session_ends USING (session_id)"
    assert rows(tmp_path, query) == [(True,)]
    ended = Shell(tmp_path, capsys)("prune", "--older-than", "2040-01-01")
    assert "pruned 1 sessions" in ended.out
    assert rows(tmp_path, "FROM telemetry") == []


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_sessions_without_telemetry_do_not_differ(tmp_path: Path) -> None:
    """A recorded session whose client sends no telemetry has no rows."""
    record_requests(tmp_path, 1)
    assert rows(tmp_path, "FROM telemetry_differences") == []


def test_a_span_stands_in_for_a_missing_log_record(tmp_path: Path) -> None:
    """The tokens of a request come from its span if there is no log record; its cost is then unknown."""
    with collecting(tmp_path) as collector:
        request = spans(span("llm_request", request_id="req_1", input_tokens=3, ttft_ms=40))
        assert send(collector.url, "/v1/traces", request).status_code == 200
    columns = "request_id, input_tokens, first_token_ms, cost_usd"
    assert rows(tmp_path, f"SELECT {columns} FROM telemetry_requests") == [("req_1", 3, 40.0, None)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"ada_lovelace": 1},
        {"request_id": "call_ada-about-rome"},
        {"request_id": "file-lovelace"},
        {"tool_use_id": "req_ada_lovelace_1"},
        {"session.id": "gen-lovelace"},
        {"model": "claude-3@lovelace.example.org"},
        {"model": "claude-3:lovelace"},
    ],
)
def test_texts_in_the_form_of_keys_ids_and_models(tmp_path: Path, values: dict[str, Any]) -> None:
    """Names of unknown attributes, and words in the form of an ID or a model, are not stored; an ID is a digest."""
    record = {**log("user_prompt"), "attributes": attributes(values)}
    hidden = span("tool")
    hidden["attributes"] = []
    hidden["traceId"] = b"lovelace, ".hex() * 100
    hidden["parentSpanId"] = b"lovelace".hex() + "0000"
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(record)).is_success
        assert send(collector.url, "/v1/traces", spans(hidden)).is_success
    becomes_digest = not values.keys().isdisjoint(("request_id", "tool_use_id"))
    expected = [(2,), (None,)] if becomes_digest else [(1,), (2,)]
    assert rows(tmp_path, "SELECT numbers['left_out'] FROM telemetry ORDER BY ALL") == expected
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"lovelace" not in data, path
            assert b"lovelace".hex().encode() not in data, path


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "req_011CVYyyyyyyyyyyyyyyyyyy", "toolu_vrtx_01AbCdEfGhJkLmNpQrStUvWx",
        "chatcmpl-2ae82282-bc28-429c-8dac-9320dd02b2d7", "gen-1795692307-A1b2C3d4E5f6G7h8J9k0",
        "a029ce327deb14cbf",
    ],
)  # fmt: skip
def test_ids_that_are_kept(tmp_path: Path, text: str) -> None:
    """IDs of Anthropic, of its partners and of gateways are kept."""
    with collecting(tmp_path) as collector:
        assert send(
            collector.url, "/v1/logs", logs(log("tool_result", tool_use_id=text))
        ).is_success
    assert rows(tmp_path, "SELECT tool_use_id FROM telemetry") == [(text,)]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0.000100600000000000000000001", "1.006e-4", "1.006e-04"])
def test_costs_in_text(tmp_path: Path, text: str) -> None:
    """Numbers are read in each form in which JavaScript writes them."""
    with collecting(tmp_path) as collector:
        record = log("api_request", request_id="req_1", cost_usd=text)
        assert send(collector.url, "/v1/logs", logs(record)).is_success
    [(usd,)] = rows(tmp_path, "SELECT cost_usd FROM telemetry_requests")
    assert usd == Decimal("0.0001006")


CANARIES = ("word", "words with blanks", "/home/ada/secret.txt", "ada@example.org")


@pytest.mark.slow
@pytest.mark.parametrize("canary", CANARIES)
def test_texts_in_telemetry_are_not_stored(tmp_path: Path, canary: str) -> None:
    """No text of a person or a model is anywhere in the home, whatever attribute it is in; it is only counted."""
    canary = canary.replace("word", "zanzibar")
    keys = (
        "prompt", "user.email", "user.id", "organization.id", "tool_parameters", "tool_input", "error", "response",
        "skill.name", "plugin.name", "tool_name", "model", "query_source", "decision", "source", "request_id",
        "tool_use_id", "agent_id", "status", "type", "effort", "speed", "service.name", "gen_ai.request.model",
        "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.conversation.id", "session.id", "stop_reason",
        "error.type", "duration_ms", "cost_usd", "service.version",
    )  # fmt: skip
    named: list[dict[str, Any]] = [{key.replace(".", "__"): canary} for key in keys]
    records = [log(canary, **each) for each in named]
    records.append({**log("api_request"), "severityText": canary, "eventName": canary})
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(*records, service=canary)).is_success
        request = spans(*({**span(canary, **each), "name": canary} for each in named))
        assert send(collector.url, "/v1/traces", request).is_success
        labels: dict[str, Any] = {key: canary for key in keys if key != "session.id"}
        request = counter(canary, 1.0, **labels)
        assert send(collector.url, "/v1/metrics", request).is_success
    assert rows(tmp_path, "SELECT count(*), min(numbers['left_out']) FROM telemetry") == [
        (2 * len(keys) + 2, 1.0)
    ]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes(), path


def test_numbers_are_bounded(tmp_path: Path) -> None:
    """Numbers that are not finite, and numbers beyond the limit, are left out and counted."""
    names = sorted(NUMBERS)
    assert len(names) > NUMBERS_MAX
    values: dict[str, Any] = dict.fromkeys(names, 1)
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(log("user_prompt", **values))).is_success
        infinite = {**log("user_prompt"), "attributes": attributes({"duration_ms": 1.5})}
        infinite["attributes"][0]["value"]["doubleValue"] = "Infinity"
        assert send(collector.url, "/v1/logs", logs(infinite)).is_success
    [(numbers,), (others,)] = rows(
        tmp_path, "SELECT numbers FROM telemetry ORDER BY cardinality(numbers) DESC"
    )
    assert len(numbers) == NUMBERS_MAX + 1
    # The name of the event is also left out.
    assert numbers["left_out"] == len(names) - NUMBERS_MAX + 1
    assert others == {"left_out": 1}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentobs", *arguments]


def environment(home: Path, **more: str) -> dict[str, str]:
    names = [name for name in os.environ if not name.startswith("OTEL_")]
    return {**{name: os.environ[name] for name in names}, "AGENTOBS_HOME": str(home), **more}


@pytest.mark.slow
def test_the_command_collects_until_it_is_stopped(tmp_path: Path) -> None:
    """It prints the variables for Claude Code, and how many records it has received."""
    running = subprocess.Popen(
        command("collect", "--port", "0", "--grpc-port", "0"),
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    printed: list[str] = []
    while not (printed and printed[-1].startswith("export OTEL_EXPORTER_OTLP_ENDPOINT=")):
        line = running.stdout.readline()
        assert line, running.communicate()
        printed.append(line.rstrip())
    url = printed[-1].partition("=")[2]
    assert f"OTLP over HTTP: {url}" in printed
    assert "export CLAUDE_CODE_ENABLE_TELEMETRY=1" in printed
    assert send(url, "/v1/logs", logs(api_request("req_1"))).status_code == 200
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate()
    assert errors == ("agentobs: received 1 log record, 0 spans and 0 data points of metrics\n")
    assert running.returncode == 130
    assert rows(tmp_path, "SELECT request_id FROM telemetry") == [("req_1",)]
    assert rows(tmp_path, "SELECT status FROM sessions") == [("completed",)]


CLIENT = """
import http.client, json, os, sys, urllib.parse
def post(variable, path, body, headers):
    url = urllib.parse.urlsplit(os.environ[variable])
    connection = http.client.HTTPConnection(url.netloc)
    connection.request("POST", url.path + path, json.dumps(body), headers)
    connection.getresponse().read()
session, body, telemetry = json.load(sys.stdin)
headers = {"anthropic-version": "2023-06-01", "x-claude-code-session-id": session}
post("ANTHROPIC_BASE_URL", "/v1/messages", body, headers)
post("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/logs", telemetry, {"content-type": "application/json"})
"""


def run_record(home: Path, url: str, stdin: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("record", "--telemetry", "--", sys.executable, "-c", CLIENT),
        env=environment(home, ANTHROPIC_BASE_URL=url, **more),
        input=stdin,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cost_usd", [None, 0.5])
def test_a_recorded_command_with_telemetry(tmp_path: Path, cost_usd: float | None) -> None:
    """The last line states whether the telemetry of the command agrees with its recorded requests."""
    usd = record_requests(tmp_path / "first", 1)
    [tokens] = rows(
        tmp_path / "first",
        "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens FROM call_costs",
    )
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens")
    record = api_request(
        "req_1", usd if cost_usd is None else cost_usd, **dict(zip(names, tokens, strict=True))
    )
    stdin = json.dumps([CLIENT_SESSION, BODY, logs(record)])
    answer = play(streamed(text("Hi")))
    with raw_provider([answer]) as provider:
        ended = run_record(tmp_path / "home", provider.url, stdin)
    found = "0 of 1 requests differ" if cost_usd is None else "1 of 1 requests differ"
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"agentobs: 1 record of telemetry: {found} (view telemetry_differences)"
    )


@pytest.mark.slow
def test_telemetry_that_cannot_be_compared(tmp_path: Path) -> None:
    """Without telemetry, and without requests in it, the last line does not say that both agree."""
    answer = play(streamed(text("Hi")))
    for record, found in (
        ([], "no telemetry was received; `env` in the settings of Claude Code can send it elsewhere"),
        ([log("user_prompt", session__id="2ae82282-bc28-429c-8dac-000000000000")],
         "1 record of telemetry: no request can be compared"),
    ):  # fmt: skip
        with raw_provider([answer]) as provider:
            stdin = json.dumps([CLIENT_SESSION, BODY, logs(*record)])
            ended = run_record(tmp_path, provider.url, stdin)
        assert ended.returncode == 0
        assert ended.stderr.splitlines()[-1] == f"agentobs: {found}"


@pytest.mark.slow
def test_telemetry_that_is_already_sent_elsewhere(tmp_path: Path) -> None:
    """The command is not run, and the error states what to do."""
    ended = run_record(
        tmp_path, "http://127.0.0.1:1", "", OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318"
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "error: OTEL_EXPORTER_OTLP_ENDPOINT: the telemetry is already sent to another receiver. Unset this variable"
    )


@pytest.mark.slow
def test_telemetry_of_a_command_within_a_session_has_a_session_of_its_own(tmp_path: Path) -> None:
    """The requests of the command belong to the session of its parent process; its telemetry does not."""
    home = tmp_path / "home"
    record = api_request("req_1", 0.5)
    stdin = json.dumps([CLIENT_SESSION, BODY, logs(record)])
    agentobs.stop_recorder()
    agentobs.start(str(home))
    try:
        with raw_provider([play(streamed(text("Hi")))]) as provider, agentobs.session("outer"):
            joined = agentobs.child_environment("inner")
            ended = run_record(home, provider.url, stdin, **joined)
    finally:
        agentobs.stop_recorder()
    assert ended.returncode == 0, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last == "agentobs: 1 record of telemetry: no request can be compared"
    sessions = "SELECT name, status, is_telemetry, turns FROM sessions ORDER BY name"
    assert rows(home, sessions) == [
        ("outer", "completed", False, 1),
        ("telemetry", "completed", True, 0),
    ]
    told = "SELECT s.name, t.client_session FROM telemetry t JOIN sessions s USING (session_id)"
    assert rows(home, told) == [("telemetry", CLIENT_SESSION)]
