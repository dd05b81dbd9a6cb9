"""The OTLP collector: receives the telemetry of other programs, and records it as events next to the recorded wire.

`otlp_requests` reads the bodies of requests, `telemetry_events` turns their records into events, `collected_sessions`
assigns the events to sessions, `http_receiver` and `grpc_receiver` are the two servers, and `telemetry_collector` runs
them.
"""
