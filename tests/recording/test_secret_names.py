"""Names that users or models choose: no secret in such a name is written to facts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import agentobs
from agentobs.records.backend import WrittenFact
from agentobs.records.facts import Event, SpanStart
from agentobs.records.labels import Label
from tests.agent.provider import Provider, call, streamed
from tests.exporters.sample_agents import DONE, calls, play, recording

KEY = "sk-ant-api03-" + "A1b2C3d4E5" * 9 + "-QQAA"
"""A secret that is also a valid label."""


def facts(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(home.rglob("*.facts")))


def test_names_with_secrets_are_digests_in_facts(tmp_path: Path) -> None:
    """If the name of an invented tool, an agent, a session or a span is a secret, a digest replaces it."""
    written: list[WrittenFact] = []

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            await play(client, agent=KEY)

    replies = [calls(call("toolu_1", KEY, where="box")), streamed(DONE)]
    with recording(tmp_path, written.append), Provider(replies) as provider, agentobs.session(KEY):
        asyncio.run(main(provider))
        with agentobs.span(KEY, word=Label(KEY)):
            pass
    assert [type(each.fact).__name__ for each in written if KEY in repr(each.fact)] == []
    assert KEY.encode() not in facts(tmp_path)
    spans = [each.fact for each in written if isinstance(each.fact, SpanStart)]
    named = {
        str(span.name): str(span.label) for span in spans if not span.name.startswith("digest")
    }
    assert named["tool"] == named["interaction"]
    assert named["tool"].startswith("digest:")


def test_labels_with_secrets_are_digests_in_facts(tmp_path: Path) -> None:
    """A label that contains a secret is replaced by a digest, even if it is reviewed; other labels stay unchanged."""
    written: list[WrittenFact] = []
    metadata: dict[str, Any] = {
        "plain": Label(KEY),
        "bearer": Label.reviewed(f"Bearer {KEY}", reason="nobody looked"),
        "sentence": Label.reviewed("it was late", reason="a constant"),
        "word": Label("late"),
    }
    with recording(tmp_path, written.append), agentobs.session("shop"):
        for _ in range(2):
            agentobs.event("shop.closed", **metadata)
            agentobs.event("shop.counted", **{KEY: 1})
    events = [each.fact for each in written if isinstance(each.fact, Event)]
    closed, own, again, _ = events
    assert closed.labels == again.labels
    labels = dict(closed.labels or {})
    assert {labels.pop(Label("plain"))[:7], labels.pop(Label("bearer"))[:7]} == {"digest:"}
    assert labels == {"sentence": "it was late", "word": "late"}
    assert [str(name)[:7] for name in own.numbers] == ["digest:"]
    assert KEY[13:].encode() not in facts(tmp_path)
