"""Our own loop on recorded conversations: it sends the follow-up requests that were recorded.

Requests are compared by their messages, after the forms that mean the same are made one: a text is one
text block; an absent `is_error` is false; an absent `caller` is a direct call; null says nothing; marks
of the cache are left out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from tests.wire import corpus
from tests.wire.corpus import WireFile, blocks
from tests.wire.taking import KEY, questions, served
from tests.wire.walking import SECONDS, conversations, runs_on_client, walk

TAG = "multi_turn_tool_use"
pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""What was recorded asks models that are old by now."""
TABLE = Path(__file__).parents[2] / "docs" / "loop_on_real_conversations.md"
SHARE = 80
"""The least part of the files whose every request our loop sends as it was recorded, in percent."""


@pytest.mark.parametrize("number", range(corpus.BATCHES))
def test_the_loop_sends_what_was_recorded(number: int, tmp_path: Path) -> None:
    """Every request is the recorded one, but in the files of the table, which part where it says."""
    files = [file for file in corpus.batch(number, TAG) if runs_on_client(file)]
    parted = asyncio.run(walk_all(files, tmp_path))
    listed = {name: place for name, place in table().items() if name in parted}
    mended = [name for name in listed if parted[name] is None]
    assert not mended, f"the loop sends what was recorded in these: take them out of {TABLE.name}"
    assert {name: place for name, place in parted.items() if place} == listed


def test_the_table_is_short_and_true() -> None:
    """Four files of five match; the table names only files that there are, and gives their number."""
    names = [name for name in corpus.files(TAG) if runs_on_client(corpus.read(name))]
    listed = table()
    assert set(listed) <= set(names)
    matching = len(names) - len(listed)
    assert 100 * matching >= SHARE * len(names)
    assert f"In {matching} of {len(names)} files" in TABLE.read_text(encoding="utf-8")


async def walk_all(files: list[WireFile], path: Path) -> dict[str, str | None]:
    """Walk the conversations of each file, and tell where its requests first part from the recorded ones."""
    walked: list[tuple[WireFile, list[int], str]] = []
    async with talking(path) as (provider, client):
        for file in files:
            recording = read_wire_file(file.path)
            for numbers in conversations(file):
                exchanges = tuple(recording.exchanges[number] for number in numbers)
                provider.load(dataclasses.replace(recording, exchanges=exchanges))
                with agentobs.session("wire") as session:
                    await walk(client, [file.exchanges[number] for number in numbers])
                walked.append((file, numbers, session.session_id))
    parted: dict[str, str | None] = {}
    for file, numbers, session_id in walked:
        place = first_parting(sent(path, session_id), [file.exchanges[n].messages for n in numbers])
        parted[file.name] = parted.get(file.name) or place
    return parted


@asynccontextmanager
async def talking(path: Path) -> AsyncIterator[tuple[ServedProvider, AsyncAnthropic]]:
    """A provider that answers in recorded order, and a client of it that is recorded."""
    agentobs.stop_recorder()
    with served(ServeOptions(match="order")) as provider:
        async with AsyncAnthropic(api_key=KEY, base_url=provider.url, timeout=SECONDS) as client:
            yield provider, agentobs.record(client, home=str(path))
    assert agentobs.stop_recorder(), "not everything was written"


def sent(path: Path, session_id: str) -> list[Any]:
    """The messages of each request of a session, as they were recorded."""
    home = existing_home(path)
    recording = read_session(home, session_id, segment_ids(home))
    return [json.loads(exchange.question.body)["messages"] for exchange in questions(recording)]


def first_parting(sent: list[Any], recorded: list[Any]) -> str | None:
    """Where the requests first differ, counted from 1, or None."""
    for number, (ours, theirs) in enumerate(zip(sent, recorded, strict=False), 1):
        if place := parting(plain(ours), plain(theirs), "messages"):
            return f"request {number}, {place}"
    return None if len(sent) == len(recorded) else f"request {min(len(sent), len(recorded)) + 1}"


def parting(ours: Any, theirs: Any, place: str) -> str | None:
    """Where two JSON values first differ, or None."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(ours.keys() | theirs.keys())
        parts = [(ours.get(key), theirs.get(key), f"{place}.{key}") for key in keys]
    elif isinstance(ours, list) and isinstance(theirs, list):
        parts = [
            (*pair, f"{place}[{at}]") for at, pair in enumerate(zip(ours, theirs, strict=False))
        ]
        if len(ours) != len(theirs):
            parts.append((0, 1, f"{place}[{len(parts)}]"))
    else:
        return None if ours == theirs else place
    return next((found for part in parts if (found := parting(*part))), None)


def plain(value: Any) -> Any:
    """Return messages in the one form of those that mean the same; see the first lines of this file."""
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("content"), str) and value.keys() & {"role", "tool_use_id"}:
        value = {**value, "content": blocks(value)}
    nothing = {"is_error": False, "caller": {"type": "direct"}}
    return {
        key: plain(inner)
        for key, inner in value.items()
        if inner is not None
        and key != "cache_control"
        and not (key in nothing and inner == nothing[key])
    }


def table() -> dict[str, str]:
    """The files that do not match, each with the place where its requests part from the recorded ones."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    cells = [re.findall(r"`([^`]+)`", line) for line in lines if line.startswith("| `")]
    return {name: place for name, place, *_ in cells}
