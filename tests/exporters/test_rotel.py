"""A collector that somebody else wrote takes what is sent, strictly, over each protocol, and hands on all of it."""

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
from tests.exporters.acting import act, delegate, recording
from tests.exporters.collector import Collector, values
from tests.exporters.making_rich import rich_home
from tests.exporters.test_after import logged, points, send, spans
from tests.exporters.test_otlp import PROTOCOLS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def rotel(tmp_path: Path, to: str) -> Iterator[dict[str, str]]:
    """Run rotel, which hands on what it takes; yields its addresses by protocol."""
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
    given = [each for name, value in options.items() for each in (f"--{name}", value)]
    with subprocess.Popen(
        [*command, *given], env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE,
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


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_another_collector_takes_all_three_signals(tmp_path: Path, protocol: Any) -> None:
    """Every span, event and metric arrives behind it as it was, in one trace, with its attributes."""
    with Collector() as behind, rotel(tmp_path, behind.endpoint) as addresses:
        backend = otlp.beta(
            addresses[protocol.partition("/")[0]], protocol=protocol, limits=Limits(tries=2)
        )
        with recording(tmp_path / "home", backend):
            act()
            delegate()
            assert sessions.flush()
            assert backend.flush(30)
        told = backend.statistics()
        assert (told.dropped, told.metrics_failed, backend.failed) == ({}, 0, 0)
        for _ in range(600):
            if len(behind.spans()) + len(behind.logs()) >= told.delivered and behind.metrics():
                break
            threading.Event().wait(0.05)
        spans = behind.spans()
        assert len(spans) + len(behind.logs()) == told.delivered
        names = {span.span_id: span.name for span in spans}
        found = {(span.name, names.get(span.parent)) for span in spans}
        assert ("chat claude-test-1", "agentobs.subagent.spawn") in found
        assert ("agentobs.hook", "execute_tool write") in found
        chat = next(span for span in spans if span.name.startswith("chat"))
        assert chat.attributes["gen_ai.usage.input_tokens"] == 13
        assert chat.attributes["gen_ai.response.finish_reasons"] == ["tool_use"]
        assert "gen_ai.client.token.usage" in behind.metrics()
        assert {"agentobs.session", "agentobs.tool"} <= {name for name, _, _ in behind.logs()}


def test_another_collector_takes_every_profile_after_the_fact(tmp_path: Path) -> None:
    """What was recorded arrives behind it, whole and unchanged: spans, events and data points in the words of each."""
    home = rich_home(tmp_path / "home")
    spoken = zip(("genai-latest", "genai-1.41", "openinference"), PROTOCOLS, strict=True)
    with Collector() as behind, rotel(tmp_path, behind.endpoint) as addresses:
        for profile, protocol in spoken:
            with Collector() as direct:
                whole = send(home, direct, profile, beta=True, name=f"direct-{profile}")
            through: Any = SimpleNamespace(
                endpoint=addresses[protocol.partition("/")[0]], protocol=protocol
            )
            behind.got.clear()
            report = send(home, through, profile, beta=True, name=f"rotel-{profile}")
            assert (report.is_complete, report.accepted) == (True, whole.accepted)
            for _ in range(600):
                if len(behind.spans()) + len(behind.logs()) + len(points(behind)) >= sum(
                    report.accepted.values()
                ):
                    break
                threading.Event().wait(0.05)
            assert spans(behind) == spans(direct)
            assert logged(behind) == logged(direct)
            assert sorted(map(told, points(behind))) == sorted(map(told, points(direct)))


def told(point: tuple[str, Any, Any]) -> str:
    """Return all there is to a data point, but the order of what stands on it."""
    name, metric, found = point
    rest = type(found)()
    rest.CopyFrom(found)
    rest.ClearField("attributes")
    return f"{name} {metric.unit} {sorted(values(found.attributes).items())} {rest}"
