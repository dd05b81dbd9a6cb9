"""The journal and the backends have no references to each other."""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.recording import session as sessions
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment
from agentobs.recording.recorder import Recorder
from agentobs.recording.segment_writer import Writer
from exporters import otlp, perfetto
from exporters.otlp.outbox import Outbox
from exporters.perfetto import TraceFiles
from tests.exporters.collector import Collector
from tests.exporters.sample_agents import recording, run_agent

FIRST_PARTY = (Writer, Segment, Home, Recorder)
THIRD_PARTY = (otlp.Backend, TraceFiles, Outbox)

_CODE = (type, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType)
"""Objects that the complete program shares; they refer only to global instances."""


def reachable(*roots: object) -> Iterator[object]:
    """Yield every object that is reachable from the given objects.

    References lead through attributes, containers, closures, defaults and bound methods, but not through modules,
    classes and the globals of functions.
    """
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _CODE):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, types.FunctionType):
            waiting += [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
        else:
            waiting += gc.get_referents(each)


def crossings(root: object, foreign: tuple[type, ...]) -> list[str]:
    return [type(each).__name__ for each in reachable(root) if isinstance(each, foreign)]


@pytest.mark.slow
def test_the_journal_and_the_backends_have_no_references_to_each_other(tmp_path: Path) -> None:
    """No chain of references leads from the journal's writer to a backend, or from a backend to the recording."""
    with Collector() as collector:
        backends = (
            otlp.standard(collector.endpoint),
            perfetto.trace_file(tmp_path / "traces"),
        )
        with recording(tmp_path / "home", *backends):
            run_agent()
            assert sessions.flush()
            assert backends[0].flush(20)
            recorder = sessions.current_recorder()
            assert recorder is not None
            found = {type(each) for each in reachable(recorder._writer)}
            assert {Writer, Segment} <= found
            assert crossings(recorder._writer, THIRD_PARTY) == []
            for backend in backends:
                found = {type(each) for each in reachable(backend)}
                assert type(backend) in found
                assert crossings(backend, FIRST_PARTY) == []
            assert {Outbox} <= {type(each) for each in reachable(backends[0])}


def test_an_added_reference_is_found(tmp_path: Path) -> None:
    """The search finds references in attributes, containers, closures, defaults, bound methods and threads."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        with recording(tmp_path / "home", backend):
            run_agent()
            assert sessions.flush()
            recorder = sessions.current_recorder()
            assert recorder is not None
            writer: Any = recorder._writer

            def closure() -> Any:
                return writer

            def default(hidden: Any = writer) -> Any:
                return hidden

            ways: list[Any] = [writer, {"deep": [(writer,)]}, closure, default, writer.seal]
            ways.append(threading.Thread(target=writer.seal))
            for way in ways:
                backend._planted = way  # type: ignore[attr-defined]
                assert "Writer" in crossings(backend, FIRST_PARTY)
            del backend._planted  # type: ignore[attr-defined]
            assert crossings(backend, FIRST_PARTY) == []
            writer._planted = backend.flush
            assert "Backend" in crossings(writer, THIRD_PARTY)
        backend.close()
    assert agentobs.stop_recorder()


def test_backends_share_no_providers() -> None:
    """Two backends share no provider, tracer, logger, meter, queue or thread."""
    with Collector() as collector:
        one, two = (
            otlp.standard(collector.endpoint),
            otlp.beta(collector.endpoint),
        )
        ours: tuple[str, ...] = ("exporters.", "opentelemetry.sdk.trace", "opentelemetry.sdk._logs")
        ours += ("opentelemetry.sdk.metrics._internal.m",)
        parts = [
            {
                id(each)
                for each in reachable(backend)
                if type(each).__module__.startswith(ours)
                and not type(each).__module__.startswith(
                    (
                        "exporters.conventions.profile",
                        "exporters.conventions.semconv",
                        "exporters.otlp.outbox",
                    )
                )
                and "sampling" not in type(each).__module__
            }
            for backend in (one, two)
        ]
        assert parts[0]
        assert not parts[0] & parts[1]
        one.close()
        two.close()
