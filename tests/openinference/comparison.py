"""The comparison of our profile `openinference` with OpenInference's own instrumentation.

Both record the same conversations with the same scripted provider: the instrumentation in a separate environment,
with the SDK that it supports, and agentobs in this one. The spans of the instrumentation are kept in
`instrumented.json`, so that the tests need no second environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anthropic import Anthropic

import agentobs
from agentobs.recording.session import flush
from exporters import otlp
from tests.agent.provider import Provider
from tests.exporters.collector import Collector, Span, values
from tests.exporters.sample_agents import recording
from tests.openinference.conversations import CONVERSATIONS
from tests.openinference.replies import REPLIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "openinference.md"
INSTRUMENTED = Path(__file__).with_name("instrumented.json")
"""The spans of the instrumentation, by conversation, and the versions of its packages."""
PEER = "openinference-instrumentation-anthropic"

_BODY = (
    "the body of the request; the instrumentation has the arguments of the SDK's method, such as "
    "`extra_body`, and no `stream`"
)
NOTES: Mapping[str, str] = {
    "input.value": _BODY,
    "llm.invocation_parameters": _BODY,
    "span name": "the model; the instrumentation has the name of the SDK's method",
    "span kind": "client, because the request leaves the process; the instrumentation has internal",
    "status description": "the error class, because a message is content",
    "event exception.type": "the error type of the provider; the instrumentation has the Python class",
    "event exception.message": 'the message of the provider, only with `content="export"`; the instrumentation has the '
    "text of the Python exception, which contains it",
    "event exception.stacktrace": "not recorded: agentobs records the HTTP exchange, not the caller's stack",
    "event exception.escaped": "not recorded, like the stack",
}
"""Why a field differs on purpose, by its name."""


@dataclass
class Field:
    """The comparison of one field over all spans."""

    equal: int = 0
    different: list[tuple[Any, Any]] = field(default_factory=list)
    """The values of the instrumentation and ours."""
    missing: int = 0

    @property
    def total(self) -> int:
        """The number of spans of the instrumentation that have the field."""
        return self.equal + len(self.different) + self.missing


@dataclass
class Comparison:
    """The comparison of all conversations."""

    fields: dict[str, Field] = field(default_factory=dict)
    more: Counter[str] = field(default_factory=Counter)
    """The fields that only our spans have."""
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    """The number of all our spans by kind, by conversation."""

    @property
    def unexplained(self) -> dict[str, Field]:
        """The fields that are different or missing without a note."""
        return {
            name: each
            for name, each in self.fields.items()
            if each.equal < each.total and name not in NOTES
        }


def compared(peer: Mapping[str, Any]) -> Comparison:
    """Record the conversations with agentobs, and compare its spans of LLM requests with the given spans."""
    found = Comparison()
    ours, found.kinds = of_agentobs()
    assert {name: len(spans) for name, spans in peer["spans"].items()} == {
        name: len(spans) for name, spans in ours.items()
    }
    for name, spans in peer["spans"].items():
        for theirs, mine in zip(spans, ours[name], strict=True):
            compare(flat(theirs), flat(mine), found)
    return found


def of_instrumentation(python: str) -> Any:
    """Run the instrumentation with this Python, and return its spans and the versions of its packages."""
    with ExitStack() as stack:
        providers = {n: stack.enter_context(Provider(REPLIES[n])) for n in CONVERSATIONS}
        addresses = json.dumps({name: each.base_url for name, each in providers.items()})
        done = subprocess.run(
            [python, str(Path(__file__).with_name("instrumented.py")), addresses],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        )
    INSTRUMENTED.write_text(done.stdout.decode() + "\n")
    return json.loads(done.stdout)


def of_agentobs() -> tuple[dict[str, list[dict[str, Any]]], dict[str, Counter[str]]]:
    """Return our spans of LLM requests by conversation, and the number of all spans by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    kinds: dict[str, Counter[str]] = {}
    for name, converse in CONVERSATIONS.items():
        with tempfile.TemporaryDirectory() as folder, Collector() as collector:
            backend = otlp.standard(
                collector.endpoint, profile="openinference", signals=("traces",)
            )
            with recording(Path(folder) / "home", backend):
                with Provider(REPLIES[name]) as provider, agentobs.session(name, content="export"):
                    client = Anthropic(api_key="made-up", base_url=provider.base_url)
                    converse(agentobs.record(client))
                assert flush()
                assert backend.flush(20)
        spans = sorted(collector.spans(), key=lambda span: span.start)
        of_kind = "openinference.span.kind"
        found[name] = [as_json(each) for each in spans if each.attributes[of_kind] == "LLM"]
        kinds[name] = Counter(str(each.attributes[of_kind]) for each in spans)
    return found, kinds


def as_json(span: Span) -> dict[str, Any]:
    """Return the parts of a span that are compared."""
    return {
        "name": span.name,
        "span kind": span.proto.kind,
        "status code": span.status,
        "status description": span.proto.status.message,
        "attributes": span.attributes,
        "events": [{"name": e.name, **values(e.attributes)} for e in span.proto.events],
    }


def flat(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a span by name."""
    found = {"span name": span["name"], "span kind": span["span kind"]}
    found |= {name: span[name] for name in ("status code", "status description") if span[name]}
    for event in span["events"]:
        found |= {f"event {name}": value for name, value in event.items()}
    return found | dict(span["attributes"])


def compare(
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    comparison: Comparison,
) -> None:
    """Compare the fields of one span."""
    for name, value in theirs.items():
        known = comparison.fields.setdefault(general(name), Field())
        if name not in ours:
            known.missing += 1
        elif plain(value) == plain(ours[name]):
            known.equal += 1
        else:
            known.different.append((value, ours[name]))
    comparison.more.update({general(name) for name in ours if name not in theirs})


def general(name: str) -> str:
    """Return the name of a field with `N` in place of each index."""
    return re.sub(r"\.\d+(?=\.)", ".N", name)


def plain(value: Any) -> Any:
    """Return a value for the comparison: JSON is parsed, and members that are null are left out, as the API does."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        return without_null(json.loads(value))
    return value


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_null(each) for name, each in value.items() if each is not None}
    return [without_null(each) for each in value] if isinstance(value, list) else value


def page(peer: Mapping[str, Any], comparison: Comparison) -> str:
    """Return the text of the page."""
    versions = peer["versions"]
    rows = [
        f"| `{name}` | {each.total} | {each.equal} | {len(each.different)} | {each.missing} | {NOTES.get(name, '')} |"
        for name, each in sorted(comparison.fields.items())
    ]
    counts = [
        f"| {name} | {len(peer['spans'][name])} LLM | {', '.join(f'{n} {kind}' for kind, n in sorted(each.items()))} |"
        for name, each in comparison.kinds.items()
    ]
    others = [f"`{name}`" for name in sorted(comparison.more) if not name.startswith("agentobs.")]
    return TEXT.format(
        peer=f"{PEER} {versions[PEER]}",
        their_sdk=versions["anthropic"],
        our_sdk=version("anthropic"),
        rows="\n".join(rows),
        counts="\n".join(counts),
        conversations="\n".join(
            f"- `{name}`: {(each.__doc__ or '').splitlines()[0]}"
            for name, each in CONVERSATIONS.items()
        ),
        more="\n".join(wrapped(", ".join(others) + ".")),
    )


def wrapped(text: str) -> Iterator[str]:
    """Yield the lines of a paragraph."""
    line = ""
    for word in text.split(" "):
        if line and len(line) + len(word) >= 120:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    yield line


TEXT = """# The profile `openinference`, compared with OpenInference's own instrumentation

`make compare-openinference` generates this page. Two recorders observe the same conversations with the same scripted
provider: `{peer}` with anthropic {their_sdk}, and agentobs with
anthropic {our_sdk}, the profile `openinference` and `content="export"`. The conversations are:

{conversations}

## Fields of the spans of LLM requests

*Values* counts the spans of the instrumentation that have the field, with `N` for each index. *Equal* counts the
spans of agentobs with the same value. JSON is compared after parsing, without members that are null.

| field | values | equal | different | missing | why agentobs differs |
| --- | --- | --- | --- | --- | --- |
{rows}

agentobs also has `agentobs.*` attributes, and these fields on spans of LLM requests where the instrumentation has none:
{more}

## Spans

The instrumentation creates a span for each call of the SDK. agentobs also creates spans for the agent, for each tool
call with its input and output, for the attempts of a retried request, and for the waits between them, and connects them
in one trace per interaction.

| conversation | instrumentation | agentobs |
| --- | --- | --- |
{counts}
"""
