"""Profiles: the whole output of each for one rich session, and a reading of it that shares no code with ours."""

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
from tests.exporters.collector import Collector
from tests.exporters.making_rich import PRICED, rich_home
from tests.exporters.test_after import send
from tests.exporters.wireread import Told, plain_pairs, read

pytestmark = pytest.mark.xdist_group("semconv")
SPOKEN = [*((name, False) for name in PROFILES), ("both", True)]
WIRES = ("http/protobuf", "http/json", "grpc")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], list[Told]]:
    """What each profile says of the rich session, read from the bytes that were sent."""
    home = rich_home(tmp_path_factory.mktemp("rich") / "home")
    found = {}
    for number, (name, beta) in enumerate(SPOKEN):
        with Collector(WIRES[number % 3]) as collector:
            assert send(home, collector, name, beta=beta, name=f"{name}-{beta}").is_complete
            found[name, beta] = list(messages(collector))
    return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the store says that the session used and cost."""
    with connect(rich_home(tmp_path_factory.mktemp("stored") / "home")) as connection:
        [row] = connection.sql(STORED).fetchall()
    return list(row)


def messages(collector: Collector) -> Iterator[Told]:
    for got in collector.got:
        yield from read(got.signal, got.body, is_json=collector.protocol == "http/json")


@pytest.mark.parametrize(("name", "beta"), SPOKEN)
def test_the_whole_output(
    told: dict[tuple[str, bool], list[Told]], name: str, beta: bool, snapshot: SnapshotAssertion
) -> None:
    """Every span, event and metric of the session, with all names and values, is as it was last looked at."""
    assert written(told[name, beta]) == snapshot


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
"""What a reader of each convention looks for."""


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
def test_a_reader_of_the_convention_finds_the_same_numbers(
    told: dict[tuple[str, bool], list[Told]], stored: list[Any], profile: str, reader: str
) -> None:
    """Tokens, money, models, tools, agents and errors are those of the store; `both` is read by either reader."""
    names = (
        NAMES["latest"] | {"written": NAMES["1.41"]["written"]}
        if reader == "1.41 cache"
        else NAMES[reader]
    )
    spans = [each for each in told[profile, False] if each.signal == "traces"]
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
    assert [sums[each] for each in TOLD] == counts
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
        if span.said.get("status", {}).get("code") == 2
    )
    assert wrong == ["invalid"]


STORED = """
    SELECT
        sum(input_tokens + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens)::BIGINT,
        sum(output_tokens)::BIGINT, sum(cache_read_tokens)::BIGINT,
        sum(cache_write_5m_tokens + cache_write_1h_tokens)::BIGINT, sum(cache_write_5m_tokens)::BIGINT,
        sum(cache_write_1h_tokens)::BIGINT, sum(reasoning_tokens)::BIGINT,
        (SELECT sum(cost_usd) FROM costs)
    FROM usage WHERE billed
"""
TOLD = ("prompt", "output", "read", "written", "written_5m", "written_1h", "reasoning")


def test_openinference_names_kinds_parts_and_messages(
    told: dict[tuple[str, bool], list[Told]],
) -> None:
    """Each span has a kind; the parts of counts and costs lie within their sums; messages stand flat and as JSON."""
    spans = [each for each in told["openinference", False] if each.signal == "traces"]
    kinds = Counter(each.attributes["openinference.span.kind"] for each in spans)
    assert kinds == {"LLM": 4, "TOOL": 4, "AGENT": 2, "GUARDRAIL": 1, "CHAIN": len(spans) - 11}
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
    assert first["llm.input_messages.1.message.content"] == "Write a letter"
    assert first["llm.output_messages.0.message.tool_calls.1.tool_call.function.name"] == "write"
    assert (
        first["llm.output_messages.0.message.tool_calls.1.tool_call.function.arguments"]
        == '{"what": "a letter"}'
    )
    assert first["input.mime_type"] == "application/json"
    assert max(len(each.attributes) for each in spans) <= 128
    assert not [name for each in spans for name in each.attributes if name.startswith("gen_ai.")]


def test_the_released_profile_has_no_name_beyond_its_release(
    told: dict[tuple[str, bool], list[Told]],
) -> None:
    """Each name of the conventions in it is one that OpenTelemetry's own package has; what is newer has ours."""
    known = {
        v
        for module in (gen_ai_attributes, gen_ai_metrics)
        for v in vars(module).values()
        if isinstance(v, str)
    }
    names = {name for each in told["genai-1.41", False] for name in each.attributes}
    names |= {each.said["name"] for each in told["genai-1.41", False] if each.signal == "metrics"}
    of_it = {name for name in names if name.startswith(("gen_ai.", "anthropic.usage"))}
    assert len(of_it) > 20
    assert of_it <= known
    latest = {name for each in told["genai-latest", False] for name in each.attributes}
    assert {n for n in latest if n.startswith("gen_ai.")} - known == {
        "gen_ai.usage.cache_write.input_tokens"
    }
    assert "gen_ai.usage.cache_creation.input_tokens" not in latest


def test_each_says_which_convention_it_follows(told: dict[tuple[str, bool], list[Told]]) -> None:
    """In the resource of all it sends, and as a value that cannot be changed."""
    for (name, _), found in told.items():
        assert {each.resource["agentobs.semconv"] for each in found} == {PROFILES[name].version}
    assert len({profile.version for profile in PROFILES.values()}) == 4
    with pytest.raises(AttributeError):
        PROFILES["both"].name = "other"  # type: ignore[misc]


def written(found: list[Told]) -> str:
    """Return what was told as text: ids by their order, times from the first instant on, nothing left out."""
    spans = sorted(
        (each for each in found if each.signal == "traces"),
        key=lambda e: (e.said["startTimeUnixNano"], e.said["spanId"]),
    )
    first = int(spans[0].said["startTimeUnixNano"])
    ids = {each.said["spanId"]: f"span {n}" for n, each in enumerate(spans, 1)}
    ids |= {each.said["traceId"]: "trace" for each in spans}

    def at(value: Any) -> str:
        return f"{(int(value) - first) / 1e6:.6f} ms"

    lines = [
        f"resource {key}: {value}"
        for key, value in sorted(spans[0].resource.items())
        if key != "service.version"
    ]
    for each in spans:
        said = each.said
        parent = ids.get(said.get("parentSpanId", ""), "-")
        status = said.get("status", {}).get("code", 0)
        head = f"{ids[said['spanId']]} in {parent}: {said['name']}"
        head += f" [kind {said['kind']}, status {status}]"
        lines += ["", head, f"  {at(said['startTimeUnixNano'])} to {at(said['endTimeUnixNano'])}"]
        lines += [f"  {key} = {value!r}" for key, value in each.attributes.items()]
    for each in found:
        if each.signal == "logs":
            said = each.said
            where = ids.get(said.get("spanId", ""), "-")
            lines += [
                "",
                f"log {said['eventName']} {said['severityText']} {at(said['timeUnixNano'])} at {where}",
            ]
            lines += [f"  {key} = {value!r}" for key, value in each.attributes.items()]
    for each in sorted(
        (e for e in found if e.signal == "metrics"), key=lambda e: str(e.said["name"])
    ):
        said = each.said
        told = said.get("histogram") or said["sum"]
        lines += [
            "",
            f"metric {said['name']} [{said['unit']}] temporality {told['aggregationTemporality']}",
        ]
        for point in told["dataPoints"]:
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
