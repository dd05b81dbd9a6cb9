"""SDK spans: one owner for each model call that is recorded.

The SDK (anthropic 2.12, `_tracing.py`) makes an OpenTelemetry span of each call as soon as a program has set a
TracerProvider, and sends its trace to the provider. A backend of ours that exports spans would show the same call
beside it, so it is switched off then. Where no backend of ours exports any, that span is the only one that the
program's telemetry has of the call: it is left where it is and *adopted*, our record naming it. Either way
it holds no content and nothing of it goes to the provider, whatever environment variables of others say.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from agentobs.errors import say_once
from agentobs.records.backend import Backend

SdkSpan = Literal["adopt", "off", "leave"]
"""What becomes of the SDK's own span of a call: it is adopted, without content; there is none; or it is as the client
was made, whose maker then sees to it that no call is counted twice."""


def settle(client: Any, wanted: SdkSpan | None, backends: Sequence[Backend]) -> None:
    """Have one owner for the calls of a client, and of the copies that it makes from now on."""
    chosen = wanted or ("off" if exports_spans(backends) else "adopt")
    given = getattr(client, "open_telemetry", None)
    if chosen == "leave" or not isinstance(given, dict):
        return
    traces = {**given.get("traces", {}), "content_mode": "metadata_only"}
    if chosen == "off":
        traces["enabled"] = False
    try:
        # There is no public way to change a client; a copy would not be the one that was given to us.
        client._set_open_telemetry({**given, "traces": traces, "propagation": False})
    except Exception as error:
        say_once(
            f"the SDK's own spans could not be switched off ({type(error).__name__}): calls may be counted twice by "
            "whoever reads both. Make the client with open_telemetry=False."
        )


def exports_spans(backends: Sequence[Backend]) -> bool:
    """Return whether a backend exports spans: each does that does not say otherwise, with `exports_spans = False`."""
    return any(getattr(each, "exports_spans", True) for each in backends)


def adopted() -> str | None:
    """Return the OpenTelemetry span that is current, as a `traceparent`; None where there is none.

    Only where the program, or the SDK, has loaded OpenTelemetry: nothing is imported for it.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
