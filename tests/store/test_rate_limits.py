"""Rate limits as facts, in the views, as events, on the command line and as a metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.provider.registry import dialect_of
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import Answer, Chunk, ModelExchange
from exporters.conventions.semconv import profile_named
from exporters.otlp.translation import Instruments, Translator
from tests import queries
from tests.cli.test_commands import Shell
from tests.store.recordings import MODEL, SECOND, T0, a_home, attempt, end, record, start

PREFIX = "anthropic-ratelimit-"
HOUR = 3600 * SECOND


def limited(number: int, turn: int, at: int, *, status: int = 200, **limits: str) -> ModelExchange:
    """Return an exchange whose response has headers about rate limits."""
    exchange = attempt(number, turn, at=at, status=status)
    headers = {f"{PREFIX}{name.replace('_', '-')}": text for name, text in limits.items()}
    answer = exchange.answer
    return replace(exchange, answer=replace(answer, headers={**answer.headers, **headers}))


def tokens(remaining: int) -> dict[str, Any]:
    reset = "2026-09-21T14:14:00Z"
    return {"tokens_limit": "1000", "tokens_remaining": str(remaining), "tokens_reset": reset}


REMAINING = (500, 99, 50, 400, 20, 100)
"""What remains of 1,000 tokens after each turn; less than 100 is low."""


def records() -> list[Any]:
    made: list[Any] = [start(1, "busy")]
    made += [
        limited(1, turn, T0 + turn * SECOND, **tokens(n)) for turn, n in enumerate(REMAINING, 1)
    ]
    made += [limited(1, 7, T0 + HOUR, status=429, requests_remaining="0", **tokens(300))]
    return [*made, end(1, at=T0 + 2 * HOUR)]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = a_home(tmp_path)
    record(home, records())
    return home


def test_each_attempt_has_its_limits(home: Home) -> None:
    """The view has one row for each attempt and limit, with the remaining share, the reset and whether it was hit."""
    rows = queries.query(
        "SELECT model, status, limit_name, limit_value, remaining, headroom_ratio, reset_ns, was_hit "
        "FROM rate_limits ORDER BY at_ns, limit_name",
        home=home.path,
    )
    reset = T0 + 40 * SECOND
    passed = [(MODEL, 200, "tokens", 1000.0, float(n), n / 1000, reset, False) for n in REMAINING]
    assert rows == [
        *passed,
        (MODEL, 429, "requests", None, 0.0, None, None, True),
        (MODEL, 429, "tokens", 1000.0, 300.0, 0.3, reset, False),
    ]


def test_the_lowest_headroom_is_known_by_model_and_hour(home: Home) -> None:
    """The view and the command show the lowest headroom of each hour, and the rejected requests."""
    rows = queries.query(
        "SELECT strftime(hour, '%H:%M'), model, limit_name, responses, lowest_remaining, lowest_ratio, rejected "
        "FROM rate_limit_headroom ORDER BY hour, limit_name",
        home=home.path,
    )
    expected = [
        ("14:00", MODEL, "tokens", 6, 20.0, 0.02, 0),
        ("15:00", MODEL, "requests", 1, 0.0, None, 1),
        ("15:00", MODEL, "tokens", 1, 300.0, 0.3, 0),
    ]
    assert rows == expected


def test_a_low_limit_is_an_event_once(home: Home) -> None:
    """An event is emitted when less than a tenth remains, and again only after more than that has remained."""
    rows = queries.query(
        "SELECT turn, label, labels['model'], numbers['remaining'], numbers['headroom_ratio'] "
        "FROM events WHERE kind = 'rate_limit_low' ORDER BY at_ns",
        home=home.path,
    )
    assert rows == [(2, "tokens", MODEL, 99.0, 0.099), (5, "tokens", MODEL, 20.0, 0.02)]


def test_the_command_shows_the_headroom(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentobs limits` shows the same rows, the latest hour first; the errors name the limit that was hit."""
    shell = Shell(home.path, capsys)
    rows = [json.loads(line) for line in shell("limits", "--json").out.splitlines()]
    assert [(row["limit_name"], row["lowest_remaining"], row["rejected"]) for row in rows] == [
        ("requests", 0.0, 1),
        ("tokens", 300.0, 0),
        ("tokens", 20.0, 0),
    ]
    table = shell("limits", "busy").out.splitlines()
    assert table[0].split()[:3] == ["hour", "(UTC)", "model"]
    assert "2.0%" in table[-1]
    [row] = queries.query(
        "SELECT status, limit_hit, error_origin FROM errors WHERE kind = 'attempt'", home=home.path
    )
    assert row == (429, "requests", "returned")


def test_the_headroom_is_a_metric() -> None:
    """The metric has the last remaining share of each limit, with the model and the limit as attributes."""
    profile = profile_named("both")
    instruments = Instruments(profile.metrics, {})
    translation = Translator(profile, {}, lambda *_: None, instruments)
    interpreter = Interpreter(b"k" * 16)
    for each in records():
        for written in interpreter.interpret(each).facts:
            translation.receive(written)
    [resource] = instruments.read().resource_metrics
    [metric] = [
        each
        for scope in resource.scope_metrics
        for each in scope.metrics
        if each.name == "agentobs.rate_limit.headroom"
    ]
    assert (metric.unit, [point.value for point in metric.data.data_points]) == ("1", [0.3])
    assert dict(metric.data.data_points[0].attributes) == {
        "gen_ai.provider.name": "anthropic",
        "agentobs.rate_limit.name": "tokens",
        "gen_ai.request.model": MODEL,
    }


def test_the_first_token_is_found_in_a_stream() -> None:
    """The first token is in the chunk in which the first delta of a content block starts, even if it is split."""
    stream = {"content-type": "text/event-stream"}
    parts = (
        b"event: message_start\n\n",
        b"event: content_block_",
        b"delta\ndata: {}\n\n",
        b"event: x",
    )
    chunks = tuple(Chunk(data, at) for at, data in enumerate(parts, 1))
    first = dialect_of("/v1/messages").first_token_ns
    assert first(Answer(200, stream, chunks, "complete")) == 3
    assert first(Answer(200, stream, chunks[:1], "cut")) is None
    assert first(Answer(200, {}, chunks, "complete")) is None
