"""A program with its own telemetry that records its clients.

It writes the spans that its tracer provider receives, and the headers that the LLM provider receives.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentobs
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from tests.provider_script import script, streamed, text
from tests.recording.test_spans import KEY, sent

ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "a canary sings"}],
}


class Exporter:
    """A backend that exports spans."""

    kinds = ("span", "span_end")

    def __call__(self, fact: object) -> None:
        """Receive a fact."""


def main(output: str, exports: str) -> None:
    """Make one call of each kind; write the spans that the tracer provider received and the headers that the LLM
    provider received.
    """
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    if exports == "exports":
        agentobs.start(options=agentobs.Options(backends=(Exporter(),)))
    answers = script(*[streamed(text("the canary answers"))] * 6)
    with ServedProvider(answers, ServeOptions(match="order")) as served:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=served.url))
        headers = sent(client)
        with agentobs.session("owned"):
            list(client.messages.create(**ASK, stream=True))
            with client.messages.stream(**ASK) as stream:
                stream.get_final_message()
            list(client.with_options(max_retries=0).messages.create(**ASK, stream=True))
            list(client.copy().messages.create(**ASK, stream=True))
            asyncio.run(async_calls(served.url))
    found = [
        f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{int(span.context.trace_flags):02x}"
        for span in kept.get_finished_spans()
    ]
    attributes = [dict(span.attributes or {}) for span in kept.get_finished_spans()]
    agentobs.stop_recorder()
    Path(output).write_text(
        json.dumps(
            {
                "calls": 6,
                "sdk": found,
                "attributes": attributes,
                "traceparents": [h["traceparent"] for h in headers if "traceparent" in h],
            },
            default=str,
        )
    )


async def async_calls(url: str) -> None:
    """Make the calls of an async client."""
    async with AsyncAnthropic(api_key=KEY, base_url=url) as client:
        agentobs.record(client)
        async with client.messages.stream(**ASK) as stream:
            await stream.get_final_message()
        async for _ in await client.with_options(timeout=9).messages.create(**ASK, stream=True):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
