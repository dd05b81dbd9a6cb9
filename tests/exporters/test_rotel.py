"""Rotel, an independent collector, accepts all sent data over each protocol, and forwards it completely."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentobs.recording import session as sessions
from exporters import otlp
from exporters.otlp.outbox import Limits
from tests.exporters.collector import Collector, values
from tests.exporters.sample_agents import recording, run_agent, run_delegation
from tests.exporters.sample_session import sample_home
from tests.exporters.test_backfill import logged, points, send, spans
from tests.exporters.test_otlp import PROTOCOLS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def rotel(tmp_path: Path, to: str) -> Iterator[dict[str, str]]:
    """Run rotel, which forwards all data to `to`; yield its addresses by protocol."""
    spec = importlib.util.find_spec("rotel")
    assert spec is not None
    assert spec.origin is not None
    grpc, http = free_port(), free_port()
    command = [str(Path(spec.origin).parent / "rotel-agent"), "start"]
    options = {
        "pid-file": str(tmp_path / "rotel.pid"),
        "log-file": str(tmp_path / "rotel.log"),
        "otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
        "otlp-http-endpoint": f"127.0.0.1:{http}",
        "exporter": "otlp",
        "otlp-exporter-endpoint": to,
        "otlp-exporter-protocol": "http",
        "batch-timeout": "50ms",
    }
    arguments = [each for name, value in options.items() for each in (f"--{name}", value)]
    with subprocess.Popen(
        [*command, *arguments], env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            for port in (grpc, http):
                wait_for(port, process)
            yield {"grpc": f"http://127.0.0.1:{grpc}", "http": f"http://127.0.0.1:{http}"}
        finally:
            process.terminate()
            process.wait(30)


def wait_for(port: int, process: Any, looks: int = 600) -> None:
    for _ in range(looks):
        assert process.poll() is None, process.stdout.read()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"nobody listens at {port}")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rotel_forwards_all_three_signals(tmp_path: Path, protocol: Any) -> None:
    """Spans, events and metrics arrive at the downstream collector unchanged."""
    with Collector() as downstream, rotel(tmp_path, downstream.endpoint) as addresses:
        backend = otlp.beta(
            addresses[protocol.partition("/")[0]], protocol=protocol, limits=Limits(tries=2)
        )
        with recording(tmp_path / "home", backend):
            run_agent()
            run_delegation()
            assert sessions.flush()
            assert backend.flush(30)
        statistics = backend.statistics()
        assert (statistics.dropped, statistics.metrics_failed, backend.failed) == ({}, 0, 0)
        for _ in range(600):
            if (
                len(downstream.spans()) + len(downstream.logs()) >= statistics.delivered
                and downstream.metrics()
            ):
                break
            threading.Event().wait(0.05)
        spans = downstream.spans()
        assert len(spans) + len(downstream.logs()) == statistics.delivered
        names = {span.span_id: span.name for span in spans}
        found = {(span.name, names.get(span.parent)) for span in spans}
        assert ("chat claude-test-1", "agentobs.subagent.spawn") in found
        assert ("agentobs.hook", "execute_tool write") in found
        chat = next(span for span in spans if span.name.startswith("chat"))
        assert chat.attributes["gen_ai.usage.input_tokens"] == 13
        assert chat.attributes["gen_ai.response.finish_reasons"] == ["tool_use"]
        assert "gen_ai.client.token.usage" in downstream.metrics()
        assert {"agentobs.session", "agentobs.tool"} <= {name for name, _, _ in downstream.logs()}


@pytest.mark.slow
def test_rotel_forwards_a_backfill_of_every_profile(tmp_path: Path) -> None:
    """Spans, events and data points of each profile arrive at the downstream collector, complete and unchanged."""
    home = sample_home(tmp_path / "home")
    variants = zip(("genai-latest", "genai-1.41", "openinference"), PROTOCOLS, strict=True)
    with Collector() as downstream, rotel(tmp_path, downstream.endpoint) as addresses:
        for profile, protocol in variants:
            with Collector() as direct:
                direct_report = send(home, direct, profile, beta=True, name=f"direct-{profile}")
            through: Any = SimpleNamespace(
                endpoint=addresses[protocol.partition("/")[0]], protocol=protocol
            )
            downstream.received.clear()
            report = send(home, through, profile, beta=True, name=f"rotel-{profile}")
            assert (report.is_complete, report.accepted) == (True, direct_report.accepted)
            for _ in range(600):
                if len(downstream.spans()) + len(downstream.logs()) + len(
                    points(downstream)
                ) >= sum(report.accepted.values()):
                    break
                threading.Event().wait(0.05)
            assert spans(downstream) == spans(direct)
            assert logged(downstream) == logged(direct)
            assert sorted(map(point_text, points(downstream))) == sorted(
                map(point_text, points(direct))
            )


def point_text(point: tuple[str, Any, Any]) -> str:
    """Return a data point as text, independent of the order of its attributes."""
    name, metric, found = point
    rest = type(found)()
    rest.CopyFrom(found)
    rest.ClearField("attributes")
    return f"{name} {metric.unit} {sorted(values(found.attributes).items())} {rest}"
