"""Runs the conversations with `openinference-instrumentation-anthropic` and prints the spans as JSON.

This program runs in the environment of the instrumentation (`make compare-openinference`), which does not contain
agentobs. Its argument is a JSON object with the address of a provider for each conversation.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

from anthropic import Anthropic
from openinference.instrumentation.anthropic import (  # type: ignore[import-not-found]
    AnthropicInstrumentor,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.openinference.conversations import CONVERSATIONS


def main() -> None:
    """Run all conversations."""
    addresses = json.loads(sys.argv[1])
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    AnthropicInstrumentor().instrument(tracer_provider=provider)
    found: dict[str, Any] = {}
    for name, converse in CONVERSATIONS.items():
        converse(Anthropic(api_key="made-up", base_url=addresses[name]))
        found[name] = [as_json(span) for span in exporter.get_finished_spans()]
        exporter.clear()
    packages = ("openinference-instrumentation-anthropic", "anthropic")
    versions = {each: version(each) for each in packages}
    json.dump({"versions": versions, "spans": found}, sys.stdout, indent=1, sort_keys=True)


def as_json(span: ReadableSpan) -> dict[str, Any]:
    """Return the parts of a span that are compared."""
    events = [{"name": each.name, **dict(each.attributes or {})} for each in span.events]
    return {
        "name": span.name,
        "span kind": span.kind.value + 1,
        "status code": span.status.status_code.value,
        "status description": span.status.description or "",
        "attributes": dict(span.attributes or {}),
        # A stack contains paths of this machine.
        "events": [{n: "..." if "stack" in n else v for n, v in each.items()} for each in events],
    }


if __name__ == "__main__":
    main()
