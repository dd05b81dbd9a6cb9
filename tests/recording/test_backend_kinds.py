"""Each backend states which kinds of facts it receives, and receives only these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs import Options
from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.backend import ALL_KINDS, Receiving, WrittenFact, backend_kind
from agentobs.records.effect_facts import Command, EffectLink, McpCall
from agentobs.records.facts import (
    TABLES,
    Event,
    Export,
    FileChange,
    GitState,
    Pruning,
    SessionTitle,
    WorkspaceState,
)
from exporters import otlp, perfetto
from tests.exporters.collector import Collector
from tests.provider_script import script, streamed, text


class Kept(list[WrittenFact]):
    """A backend that keeps what it receives, by kind."""

    def kinds_received(self) -> set[str]:
        """Return the kinds of the facts that were received."""
        return {backend_kind(each.fact) for each in self}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Return a home, and stop the recorder afterwards."""
    agentobs.stop_recorder()
    yield tmp_path / "home"
    agentobs.stop_recorder()


def _run(home: Path, options: Options) -> None:
    with ServedProvider(script(streamed(text("Done."))), ServeOptions(match="order")) as provider:
        agentobs.start(str(home), options)
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.url))
        with agentobs.session("refunds"):
            agentobs.event("billing.invoice", amount=3)
            agentobs.event("people.login", count=1)
            client.messages.create(
                model="claude-opus-5-5",
                max_tokens=9,
                messages=[{"role": "user", "content": "Hello"}],
            )
        assert agentobs.flush(30)
        for each in options.backends:
            assert getattr(each, "flush", lambda _: True)(30)
        assert agentobs.stop_recorder()


def test_a_backend_receives_only_the_kinds_that_it_names(home: Path) -> None:
    few, own, everything = Kept(), Kept(), Kept()
    backends = (
        agentobs.receiving(["attempt", "usage"], few.append),
        agentobs.receiving(["billing.*"], own.append),
        agentobs.receiving(["*"], everything.append),
    )
    _run(home, Options(backends=backends))
    assert few.kinds_received() == {"attempt", "usage"}
    assert own.kinds_received() == {"billing.invoice"}
    assert {"session", "session_end", "usage", "people.login"} <= everything.kinds_received()


def test_a_collector_gets_only_the_kinds_that_its_exporter_names(home: Path) -> None:
    with Collector() as collector:
        kinds = ["session", "session_end", "billing.*"]
        backend = otlp.standard(collector.endpoint, kinds=kinds)
        _run(home, Options(backends=(backend,)))
    assert b"billing.invoice" in collector.bytes
    for kept_back in (b"people.login", b"claude-opus-5-5"):
        assert kept_back not in collector.bytes


@pytest.mark.parametrize("kinds", [None, [], "attempt", ["attempted"], [3]])
def test_a_backend_that_states_no_known_kinds_is_rejected(kinds: object) -> None:
    def backend(fact: WrittenFact) -> None:
        """Receive a fact."""

    if kinds is not None:
        backend.kinds = kinds  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="kinds of facts"):
        Options(backends=(backend,))


def test_wrong_kinds_are_rejected_where_they_are_passed() -> None:
    with pytest.raises(UsageError, match="'attempted'"):
        agentobs.receiving(["attempted"], print)
    with pytest.raises(UsageError, match="'attempted'"):
        otlp.standard("http://localhost:4318", kinds=["attempted"])


def test_every_fact_of_a_session_has_a_kind_that_the_default_names(tmp_path: Path) -> None:
    facts: list[Any] = [object.__new__(fact) for fact in TABLES if fact is not Event]
    named = {backend_kind(fact) for fact in facts}
    # These are written by commands, not while an agent runs, or they are not exported.
    effects = (Command, McpCall, EffectLink, WorkspaceState, FileChange)
    others = {TABLES[each] for each in (Export, Pruning, GitState, SessionTitle, *effects)}
    assert named - others <= set(ALL_KINDS)
    assert perfetto.trace_file(tmp_path).kinds == ALL_KINDS


def test_the_list_of_a_wrapper_replaces_that_of_its_backend(tmp_path: Path) -> None:
    traces = perfetto.trace_file(tmp_path)
    narrowed = agentobs.receiving(["span", "span_end"], traces)
    assert isinstance(narrowed, Receiving)
    assert narrowed.kinds == ("span", "span_end")
    assert narrowed.statistics() == traces.statistics()  # type: ignore[operator]
