"""SDK spans: each recorded LLM request has exactly one span owner.

The SDK (anthropic 2.12, `_tracing.py`) creates an OpenTelemetry span for each call as soon as a program has set a
TracerProvider, and sends its trace to the provider. A backend that exports spans of agentobs would show the same call
twice, so the span of the SDK is switched off then. Without such a backend, that span is the only one in the
program's telemetry: it is kept and *adopted*, which means that the record refers to it. In both cases
it holds no content and nothing of it goes to the provider, whatever environment variables are set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from agentobs.errors import say_once
from agentobs.records.backend import Backend

SdkSpan = Literal["adopt", "off", "leave"]
"""How to handle the SDK's own span of a call: it is adopted, without content; it is switched off; or it stays as the
client was created, and the user has to make sure that no call is counted twice.
"""


def settle(client: Any, wanted: SdkSpan | None, backends: Sequence[Backend]) -> None:
    """Set one span owner for the calls of a client, and of the copies that it creates from now on."""
    chosen = wanted or ("off" if exports_spans(backends) else "adopt")
    given = getattr(client, "open_telemetry", None)
    if chosen == "leave" or not isinstance(given, dict):
        return
    traces = {**given.get("traces", {}), "content_mode": "metadata_only"}
    if chosen == "off":
        traces["enabled"] = False
    try:
        # There is no public way to change a client, and a copy would not be the object that the caller holds.
        client._set_open_telemetry({**given, "traces": traces, "propagation": False})
    except Exception as error:
        say_once(
            f"the SDK's own spans could not be turned off ({type(error).__name__}): calls may be counted twice. "
            "Create the client with open_telemetry=False."
        )


def exports_spans(backends: Sequence[Backend]) -> bool:
    """Return whether a backend exports spans: it does unless it has `exports_spans = False`."""
    return any(getattr(each, "exports_spans", True) for each in backends)


def adopted() -> str | None:
    """Return the current OpenTelemetry span as a `traceparent`; None if there is none.

    Only if the program, or the SDK, has loaded OpenTelemetry: nothing is imported for this.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
