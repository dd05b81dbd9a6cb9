"""OTLP: spans, events and metrics to a collector.

backend = otlp.standard(endpoint="http://localhost:4318")
agentobs.start(options=agentobs.Options(backends=(backend,)))
"""

from exporters.otlp.collector_backend import (
    ENDPOINTS,
    Backend,
    Protocol,
    Sending,
    beta,
    headers_of,
    sending,
    standard,
)

__all__ = [
    "ENDPOINTS",
    "Backend",
    "Protocol",
    "Sending",
    "beta",
    "headers_of",
    "sending",
    "standard",
]
