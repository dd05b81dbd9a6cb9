"""Names that users or models choose: no secret in such a name is written to facts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import agentobs
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Line, content_path, facts_path, read, segment_ids
from agentobs.records.backend import WrittenFact
from agentobs.records.facts import Event, SpanStart
from agentobs.records.labels import Label
from tests.agent.provider import Provider, call, streamed
from tests.exporters.sample_agents import DONE, calls, play, recording
from tests.store.recordings import attempt, end, record, start

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


def values(home: Home, kind: str, *, content: bool = False) -> list[dict[str, Any]]:
    """Return the lines of one kind in the facts files, or in the content files, of a home."""
    path_of = content_path if content else facts_path
    found = [line for each in segment_ids(home) for line in read(path_of(home, each))]
    return [line.value() for line in found if isinstance(line, Line) and line.kind == kind]


def test_only_the_name_of_an_unknown_count_is_a_digest(tmp_path: Path) -> None:
    """The model of a usage row and the reason in its note stay readable; the name of a count that a server invents
    is a digest, and its text is content, once in a segment.
    """
    home = open_home(tmp_path)
    used: dict[str, Any] = {"server_tool_use": {"ada_requests": -1}, "model": "claude-opus-5[1m]"}
    record(home, [start(1), *(attempt(1, turn, **used) for turn in (1, 2)), end(1)])
    rows = values(home, "usage")
    assert [row["model"] for row in rows] == ["claude-opus-5[1m]"] * 2
    [note] = {row["note"] for row in rows}
    found = re.fullmatch(r"(digest:[0-9a-f]+):negative", note)
    assert found
    told = [each["content_id"].rpartition(":")[2] for each in values(home, "label", content=True)]
    assert told.count(found[1].removeprefix("digest:")) == 1
