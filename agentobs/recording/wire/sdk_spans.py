"""SDK spans: each recorded LLM request has exactly one span owner.

The SDK (anthropic 2.12, `_tracing.py`) creates an OpenTelemetry span for each call if a program has set a
TracerProvider, and sends the trace context to the provider. If a backend exports the spans of agentobs, the same call
would be shown twice, so the SDK's span is disabled. Without such a backend, the SDK's span is the only one in the
program's telemetry: it is kept and *adopted*, which means that the record refers to it. In both cases no content is put
into the span, and no trace context is sent to the provider, regardless of environment variables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from agentobs.errors import warn_once
from agentobs.records.backend import Backend

SdkSpan = Literal["adopt", "off", "leave"]
"""How to handle the SDK's own span of a call. `adopt`: the span is kept without content, and the record refers to it.
`off`: the span is disabled. `leave`: the client's own setting applies, and the user has to ensure that no call is
counted twice.
"""


def configure(client: Any, sdk_span: SdkSpan | None, backends: Sequence[Backend]) -> None:
    """Choose the span owner for the calls of a client, and of the copies that it creates from now on."""
    mode = sdk_span or ("off" if exports_spans(backends) else "adopt")
    settings = getattr(client, "open_telemetry", None)
    if mode == "leave" or not isinstance(settings, dict):
        return
    traces = {**settings.get("traces", {}), "content_mode": "metadata_only"}
    if mode == "off":
        traces["enabled"] = False
    try:
        # There is no public way to change a client, and a copy would not be the object that the caller holds.
        client._set_open_telemetry({**settings, "traces": traces, "propagation": False})
    except Exception as error:
        warn_once(
            f"the SDK's own spans could not be turned off ({type(error).__name__}): calls may be counted twice. "
            "Create the client with open_telemetry=False."
        )


def exports_spans(backends: Sequence[Backend]) -> bool:
    """Return whether any backend exports spans; a backend does unless it has `exports_spans = False`."""
    return any(getattr(each, "exports_spans", True) for each in backends)


def adopted() -> str | None:
    """Return the current OpenTelemetry span as a `traceparent`; None if there is none.

    OpenTelemetry is not imported for this: there is no span if neither the program nor the SDK has imported it.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
