"""The complete output of each profile for one session, read by an independent decoder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from syrupy.assertion import SnapshotAssertion

from agentobs.store.duckdb.connection import connect
from exporters.conventions.semconv import PROFILES
from exporters.otlp.translation import SPAN_ATTRIBUTES_MAX
from tests.exporters.collector import Collector
from tests.exporters.otlp_decoder import TelemetryItem, plain_pairs, read
from tests.exporters.sample_session import PRICED, sample_home
from tests.exporters.test_backfill import send

pytestmark = pytest.mark.xdist_group("semconv")
PROFILE_VARIANTS = [*((name, False) for name in PROFILES), ("both", True)]
PROTOCOLS = ("http/protobuf", "http/json", "grpc")


@pytest.fixture(scope="module")
def items_by_profile(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, bool], list[TelemetryItem]]:
    """The items of the sample session in each profile, decoded from the sent bytes."""
    home = sample_home(tmp_path_factory.mktemp("sample") / "home")
    found = {}
    for number, (name, beta) in enumerate(PROFILE_VARIANTS):
        with Collector(PROTOCOLS[number % 3]) as collector:
            assert send(home, collector, name, beta=beta, name=f"{name}-{beta}").is_complete
            found[name, beta] = list(messages(collector))
    return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The token counts and the cost of the session in the store."""
    with connect(sample_home(tmp_path_factory.mktemp("stored") / "home")) as connection:
        [row] = connection.sql(STORED).fetchall()
    return list(row)


def messages(collector: Collector) -> Iterator[TelemetryItem]:
    for message in collector.received:
        yield from read(message.signal, message.body, is_json=collector.protocol == "http/json")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "beta"), PROFILE_VARIANTS)
def test_the_complete_output(
    items_by_profile: dict[tuple[str, bool], list[TelemetryItem]],
    name: str,
    beta: bool,
    snapshot: SnapshotAssertion,
) -> None:
    """Every span, event and metric of the session, with all names and values, equals the reviewed snapshot."""
    assert as_text(items_by_profile[name, beta]) == snapshot


NAMES: dict[str, dict[str, str]] = {
    "latest": {
        "prompt": "gen_ai.usage.input_tokens",
        "output": "gen_ai.usage.output_tokens",
        "read": "gen_ai.usage.cache_read.input_tokens",
        "written": "gen_ai.usage.cache_write.input_tokens",
        "written_5m": "anthropic.usage.cache_creation.ephemeral_5m_input_tokens",
        "written_1h": "anthropic.usage.cache_creation.ephemeral_1h_input_tokens",
        "reasoning": "gen_ai.usage.reasoning.output_tokens",
        "usd": "agentobs.cost.usd",
        "model": "gen_ai.response.model",
        "tool": "gen_ai.tool.name",
        "call": "gen_ai.tool.call.id",
        "agent": "gen_ai.agent.name",
        "conversation": "gen_ai.conversation.id",
    },
    "1.41": {
        "prompt": "gen_ai.usage.input_tokens",
        "output": "gen_ai.usage.output_tokens",
        "read": "gen_ai.usage.cache_read.input_tokens",
        "written": "gen_ai.usage.cache_creation.input_tokens",
        "written_5m": "agentobs.usage.cache_write_5m_input_tokens",
        "written_1h": "agentobs.usage.cache_write_1h_input_tokens",
        "reasoning": "gen_ai.usage.reasoning.output_tokens",
        "usd": "agentobs.cost.usd",
        "model": "gen_ai.response.model",
        "tool": "gen_ai.tool.name",
        "call": "gen_ai.tool.call.id",
        "agent": "gen_ai.agent.name",
        "conversation": "gen_ai.conversation.id",
    },
    "openinference": {
        "prompt": "llm.token_count.prompt",
        "output": "llm.token_count.completion",
        "read": "llm.token_count.prompt_details.cache_read",
        "written": "llm.token_count.prompt_details.cache_write",
        "written_5m": "agentobs.usage.cache_write_5m_input_tokens",
        "written_1h": "agentobs.usage.cache_write_1h_input_tokens",
        "reasoning": "llm.token_count.completion_details.reasoning",
        "usd": "llm.cost.total",
        "model": "llm.model_name",
        "tool": "tool.name",
        "call": "tool.id",
        "agent": "agent.name",
        "conversation": "session.id",
    },
}
"""The attribute names that a reader of each convention uses."""


@pytest.mark.parametrize(
    ("profile", "reader"),
    [
        ("both", "latest"),
        ("both", "1.41 cache"),
        ("genai-latest", "latest"),
        ("genai-1.41", "1.41"),
        ("openinference", "openinference"),
    ],
)
def test_the_attributes_contain_the_numbers_of_the_store(
    items_by_profile: dict[tuple[str, bool], list[TelemetryItem]],
    stored: list[Any],
    profile: str,
    reader: str,
) -> None:
    """Tokens, costs, models, tools, agents and errors match the store; readers of both conventions can read `both`."""
    names = (
        NAMES["latest"] | {"written": NAMES["1.41"]["written"]}
        if reader == "1.41 cache"
        else NAMES[reader]
    )
    spans = [each for each in items_by_profile[profile, False] if each.signal == "traces"]
    sums: Counter[str] = Counter()
    for span in spans:
        for what in (
            "prompt",
            "output",
            "read",
            "written",
            "written_5m",
            "written_1h",
            "reasoning",
            "usd",
        ):
            sums[what] += span.attributes.get(names[what], 0)
    *counts, usd = stored
    assert [sums[each] for each in TOKEN_COUNTS] == counts
    assert sums["usd"] == pytest.approx(float(usd))
    found = {
        what: Counter(s.attributes[n] for s in spans if n in s.attributes)
        for what, n in names.items()
    }
    assert found["model"] == {PRICED: 3, "claude-test-1": 1}
    assert found["tool"] == {"look": 2, "write": 1, "agent": 1}
    assert sorted(found["call"]) == ["toolu_1", "toolu_2", "toolu_3", "toolu_4"]
    assert found["agent"] == {"clerk": 1, "helper": 1}
    assert len(found["conversation"]) == 1
    assert sum(found["conversation"].values()) == len(spans)
    wrong = sorted(
        span.attributes["error.type"]
        for span in spans
        if span.fields.get("status", {}).get("code") == 2
    )
    assert wrong == ["invalid", "overloaded_error"]


STORED = """
    SELECT
        sum(input_tokens + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens)::BIGINT,
        sum(output_tokens)::BIGINT, sum(cache_read_tokens)::BIGINT,
        sum(cache_write_5m_tokens + cache_write_1h_tokens)::BIGINT, sum(cache_write_5m_tokens)::BIGINT,
        sum(cache_write_1h_tokens)::BIGINT, sum(reasoning_tokens)::BIGINT,
        (SELECT sum(cost_usd) FROM costs)
    FROM usage WHERE billed
"""
TOKEN_COUNTS = ("prompt", "output", "read", "written", "written_5m", "written_1h", "reasoning")


def test_openinference_names_kinds_parts_and_messages(
    items_by_profile: dict[tuple[str, bool], list[TelemetryItem]],
) -> None:
    """Each span has a kind, parts of counts and costs do not exceed sums, and messages are attributes and JSON."""
    spans = [each for each in items_by_profile["openinference", False] if each.signal == "traces"]
    kinds = Counter(each.attributes["openinference.span.kind"] for each in spans)
    assert kinds == {"LLM": 4, "TOOL": 4, "AGENT": 2, "GUARDRAIL": 1, "CHAIN": len(spans) - 11}
    attempts = [each for each in spans if each.attributes["agentobs.span"] == "attempt"]
    assert [each.attributes["agentobs.attempt.number"] for each in attempts] == [1, 2]
    assert not [n for each in attempts for n in each.attributes if n.startswith("llm.")]
    first = next(
        each.attributes for each in spans if each.attributes.get("llm.finish_reason") == "tool_use"
    )
    assert (
        first["llm.token_count.total"]
        == first["llm.token_count.prompt"] + first["llm.token_count.completion"]
    )
    parts = ("input", "cache_read", "cache_write")
    assert sum(first[f"llm.cost.prompt_details.{each}"] for each in parts) == pytest.approx(
        first["llm.cost.prompt"]
    )
    assert first["llm.cost.prompt"] + first["llm.cost.completion"] == pytest.approx(
        first["llm.cost.total"]
    )
    assert first["llm.input_messages.0.message.role"] == "system"
    part = "llm.input_messages.1.message.contents.0.message_content"
    assert (first[f"{part}.type"], first[f"{part}.text"]) == ("text", "Write a letter")
    assert first["llm.output_messages.0.message.tool_calls.1.tool_call.function.name"] == "write"
    assert (
        first["llm.output_messages.0.message.tool_calls.1.tool_call.function.arguments"]
        == '{"what": "a letter"}'
    )
    assert first["input.mime_type"] == "application/json"
    assert max(len(each.attributes) for each in spans) <= SPAN_ATTRIBUTES_MAX
    assert not [name for each in spans for name in each.attributes if name.startswith("gen_ai.")]


def test_the_released_profile_uses_only_released_names(
    items_by_profile: dict[tuple[str, bool], list[TelemetryItem]],
) -> None:
    """Its convention names are defined in OpenTelemetry's package; all other names are `agentobs.*`."""
    known = {
        v
        for module in (gen_ai_attributes, gen_ai_metrics)
        for v in vars(module).values()
        if isinstance(v, str)
    }
    names = {name for each in items_by_profile["genai-1.41", False] for name in each.attributes}
    names |= {
        each.fields["name"]
        for each in items_by_profile["genai-1.41", False]
        if each.signal == "metrics"
    }
    of_it = {name for name in names if name.startswith(("gen_ai.", "anthropic.usage"))}
    assert len(of_it) > 20
    assert of_it <= known
    latest = {name for each in items_by_profile["genai-latest", False] for name in each.attributes}
    assert {n for n in latest if n.startswith("gen_ai.")} - known == {
        "gen_ai.usage.cache_write.input_tokens"
    }
    assert "gen_ai.usage.cache_creation.input_tokens" not in latest


def test_each_profile_names_its_convention(
    items_by_profile: dict[tuple[str, bool], list[TelemetryItem]],
) -> None:
    """The version of the convention is in the resource of all items; profiles are immutable."""
    for (name, _), items in items_by_profile.items():
        assert {each.resource["agentobs.semconv"] for each in items} == {PROFILES[name].version}
    assert len({profile.version for profile in PROFILES.values()}) == 4
    with pytest.raises(AttributeError):
        PROFILES["both"].name = "other"  # type: ignore[misc]


def as_text(items: list[TelemetryItem]) -> str:
    """Return all items as text, with IDs replaced by numbers, and times relative to the first span."""
    spans = sorted(
        (each for each in items if each.signal == "traces"),
        key=lambda e: (e.fields["startTimeUnixNano"], e.fields["spanId"]),
    )
    first = int(spans[0].fields["startTimeUnixNano"])
    ids = {each.fields["spanId"]: f"span {n}" for n, each in enumerate(spans, 1)}
    ids |= {each.fields["traceId"]: "trace" for each in spans}

    def at(value: Any) -> str:
        return f"{(int(value) - first) / 1e6:.6f} ms"

    lines = [
        f"resource {key}: {value}"
        for key, value in sorted(spans[0].resource.items())
        if key != "service.version"
    ]
    for each in spans:
        fields = each.fields
        parent = ids.get(fields.get("parentSpanId", ""), "-")
        status = " ".join(map(str, fields.get("status", {}).values())) or "0"
        head = f"{ids[fields['spanId']]} in {parent}: {fields['name']}"
        head += f" [kind {fields['kind']}, status {status}]"
        lines += [
            "",
            head,
            f"  {at(fields['startTimeUnixNano'])} to {at(fields['endTimeUnixNano'])}",
        ]
        lines += [f"  {key} = {value!r}" for key, value in each.attributes.items()]
        lines += [
            f"  event {event['name']} {sorted(plain_pairs(event['attributes']).items())}"
            for event in fields.get("events", ())
        ]
    for each in items:
        if each.signal == "logs":
            fields = each.fields
            where = ids.get(fields.get("spanId", ""), "-")
            lines += [
                "",
                f"log {fields['eventName']} {fields['severityText']} {at(fields['timeUnixNano'])} at {where}",
            ]
            lines += [f"  {key} = {value!r}" for key, value in each.attributes.items()]
    for each in sorted(
        (e for e in items if e.signal == "metrics"), key=lambda e: str(e.fields["name"])
    ):
        fields = each.fields
        data = fields.get("histogram") or fields["sum"]
        lines += [
            "",
            f"metric {fields['name']} [{fields['unit']}] temporality {data['aggregationTemporality']}",
        ]
        for point in data["dataPoints"]:
            times = f"{at(point['startTimeUnixNano'])} to {at(point['timeUnixNano'])}"
            count = (
                f"count {int(point['count'])} sum {point['sum']:g}"
                if "count" in point
                else f"{point['asDouble']:g}"
            )
            lines.append(f"  {times} {count} {sorted(plain_pairs(point['attributes']).items())}")
            if "count" in point:
                lines.append(
                    f"    in {[int(n) for n in point['bucketCounts']]} of {[*point['explicitBounds']]}"
                )
    return re.sub(r"\b01[0-9a-f]{30}\b", "id", "\n".join(lines))
