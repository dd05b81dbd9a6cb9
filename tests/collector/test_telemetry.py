"""Telemetry in the store: differences from recorded requests, privacy, and the commands that receive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

import agentobs
from agentobs.collector.telemetry_events import NUMBERS_MAX
from tests.collector.telemetry import (
    CLIENT_SESSION,
    api_request,
    collecting,
    counter,
    log,
    logs,
    send,
    span,
    spans,
)
from tests.provider_script import streamed, text
from tests.proxy.proxies import VERSION, proxied
from tests.replay.raw_provider import play, raw_provider

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


def test_differences_from_recorded_requests(tmp_path: Path) -> None:
    """Requests are joined by session and request ID; requests about which both agree are no rows."""
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


CANARIES = ("word", "words with blanks", "/home/ada/secret.txt", "ada@example.org")


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
    values: dict[str, Any] = {f"n{number}": number for number in range(100)}
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(log("user_prompt", **values))).is_success
    [(numbers,)] = rows(tmp_path, "SELECT numbers FROM telemetry")
    assert len(numbers) == NUMBERS_MAX + 1
    # The name of the event is left out, too.
    assert numbers["left_out"] == 100 - NUMBERS_MAX + 1


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentobs", *arguments]


def environment(home: Path, **more: str) -> dict[str, str]:
    names = [name for name in os.environ if not name.startswith("OTEL_")]
    return {**{name: os.environ[name] for name in names}, "AGENTOBS_HOME": str(home), **more}


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
    assert errors == ("agentobs: received 1 log records, 0 spans and 0 data points of metrics\n")
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


@pytest.mark.parametrize("cost_usd", [None, 0.5])
def test_a_recorded_command_with_telemetry(tmp_path: Path, cost_usd: float | None) -> None:
    """The last line says whether the telemetry of the command agrees with its recorded requests."""
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
    found = "no request differs" if cost_usd is None else "1 request differs"
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"agentobs: 1 record of telemetry: {found} (view telemetry_differences)"
    )


def test_telemetry_that_is_already_sent_elsewhere(tmp_path: Path) -> None:
    """The command is not run, and the error says what to do."""
    ended = run_record(
        tmp_path, "http://127.0.0.1:1", "", OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318"
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "error: OTEL_EXPORTER_OTLP_ENDPOINT: the telemetry is already sent to another receiver. Unset this variable"
    )
