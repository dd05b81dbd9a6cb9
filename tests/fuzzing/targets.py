"""All targets: the formats that come from outside. Shares are chosen so that fast targets get most of the inputs."""

from __future__ import annotations

from tests.fuzzing import file_targets, http_targets, stream_targets
from tests.fuzzing.runner import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("fixture", file_targets.fixtures, 40),
        Target("recorded-files", file_targets.recorded_files, 100),
        Target("segment", file_targets.segments, 60),
        Target("compressed-segment", file_targets.compressed_segments, 60),
        Target("segment-index", file_targets.segment_indexes, 40),
        Target("store", file_targets.stores, 0.1, quick=0),
        Target("bundle", file_targets.bundles, 20),
        Target("bundled-lines", file_targets.bundled_lines, 10, quick=15),
        Target("prices", file_targets.prices, 30),
        Target("claude-code", file_targets.claude_code, 10, quick=15),
        Target("wire", file_targets.wire, 3, quick=10),
        Target("wire-import", file_targets.wire_imports, 0.1, quick=0),
        Target("vcr", file_targets.recordings_of("vcr"), 3, quick=6),
        Target("har", file_targets.recordings_of("har"), 10, quick=10),
        Target("agent-rewind", file_targets.recordings_of("agent-rewind"), 10, quick=10),
        Target("orca", file_targets.recordings_of("orca"), 10, quick=10),
        Target("unknown-file", file_targets.unknown_files, 100),
        Target("server-sent-events", stream_targets.event_streams, 150),
        Target("framed-stream", stream_targets.framed_streams, 60),
        Target("response", stream_targets.responses, 10),
        Target("request", stream_targets.requests, 10),
        Target("content-encoding", stream_targets.encodings, 60),
        Target("text", stream_targets.texts, 40),
        Target("otlp-json", stream_targets.telemetry(True), 40),
        Target("otlp-protobuf", stream_targets.telemetry(False), 60),
        Target("otlp-gzip", stream_targets.compressed_telemetry, 150),
        Target("sent-request", stream_targets.sent_requests, 150),
        Target("environment", stream_targets.environments, 30),
        Target("dashboard-guard", http_targets.dashboard_guard, 30),
        Target("dashboard-page", http_targets.dashboard_pages, 0.1, quick=3),
        Target("proxy", http_targets.proxy, 5, quick=10),
        Target("collector", http_targets.collector, 5, quick=10),
        Target("recorded-provider", http_targets.recorded_provider, 20, quick=15),
    )
}
