"""The agent loop on recorded conversations: it sends the same follow-up requests as the recorded client.

Only the messages of requests are compared. Before the comparison, equivalent forms are normalized: a string is one text
block, an absent `is_error` is false, an absent `caller` is a direct call, null is absent, and cache breakpoints are
removed.
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
from tests.marks import mark_all_but_first
from tests.wire import corpus
from tests.wire.corpus import WireFile, blocks
from tests.wire.loop_driver import SECONDS, conversations, run_conversation, runs_on_client
from tests.wire.recorded_batches import KEY, model_exchanges, served

TAG = corpus.TAG_CONVERSATION
pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""The recorded requests name models that are deprecated now."""
TABLE = Path(__file__).parents[2] / "docs" / "loop_on_real_conversations.md"
MIN_PERCENT = 80
"""The minimum percentage of files for which every request of the loop equals the recorded request."""


@pytest.mark.parametrize("number", mark_all_but_first(range(corpus.BATCHES), pytest.mark.slow))
def test_the_loop_sends_the_recorded_requests(number: int, tmp_path: Path) -> None:
    """Every request of the loop equals the recorded request, except the first differences that the table lists."""
    files = [file for file in corpus.batch(number, TAG) if runs_on_client(file)]
    found = asyncio.run(first_differences(files, tmp_path))
    listed = {name: place for name, place in table().items() if name in found}
    fixed = [name for name in listed if found[name] is None]
    assert not fixed, f"these files match now, so remove them from {TABLE.name}: {fixed}"
    assert {name: place for name, place in found.items() if place} == listed


def test_the_table_is_short_and_correct() -> None:
    """At least 80 percent of the files match, and the table lists only existing files and states the correct
    numbers.
    """
    names = [name for name in corpus.files(TAG) if runs_on_client(corpus.read(name))]
    listed = table()
    assert set(listed) <= set(names)
    matching = len(names) - len(listed)
    assert 100 * matching >= MIN_PERCENT * len(names)
    assert f"In {matching} of {len(names)} files" in TABLE.read_text(encoding="utf-8")


async def first_differences(files: list[WireFile], path: Path) -> dict[str, str | None]:
    """Run the loop on the conversations of each file; return where its requests first differ from the recorded
    requests.
    """
    sessions: list[tuple[WireFile, list[int], str]] = []
    async with recorded_client(path) as (provider, client):

        async def run_session(file: WireFile, numbers: list[int]) -> str:
            # A session that a nested function opens does not record the arguments of the function.
            with agentobs.session("wire") as session:
                await run_conversation(client, [file.exchanges[number] for number in numbers])
            return session.session_id

        for file in files:
            recording = read_wire_file(file.path)
            for numbers in conversations(file):
                exchanges = tuple(recording.exchanges[number] for number in numbers)
                provider.load(dataclasses.replace(recording, exchanges=exchanges))
                sessions.append((file, numbers, await run_session(file, numbers)))
    differences: dict[str, str | None] = {}
    for file, numbers, session_id in sessions:
        recorded = [file.exchanges[number].messages for number in numbers]
        place = first_difference(sent_messages(path, session_id), recorded)
        differences[file.name] = differences.get(file.name) or place
    return differences


@asynccontextmanager
async def recorded_client(path: Path) -> AsyncIterator[tuple[ServedProvider, AsyncAnthropic]]:
    """Yield a provider that responds in the recorded order, and a client of it that is recorded."""
    agentobs.stop_recorder()
    with served(ServeOptions(match="order")) as provider:
        async with AsyncAnthropic(api_key=KEY, base_url=provider.url, timeout=SECONDS) as client:
            yield provider, agentobs.record(client, home=str(path))
    assert agentobs.stop_recorder(), "not all records were written"


def sent_messages(path: Path, session_id: str) -> list[Any]:
    """Return the messages of each recorded request of a session."""
    home = existing_home(path)
    recording = read_session(home, session_id, segment_ids(home))
    return [
        json.loads(exchange.question.body)["messages"] for exchange in model_exchanges(recording)
    ]


def first_difference(sent: list[Any], recorded: list[Any]) -> str | None:
    """Return the first request (counted from 1) that differs, and the place in it; None if all requests are equal."""
    for number, (actual, expected) in enumerate(zip(sent, recorded, strict=False), 1):
        if place := differing_place(normalized(actual), normalized(expected), "messages"):
            return f"request {number}, {place}"
    return None if len(sent) == len(recorded) else f"request {min(len(sent), len(recorded)) + 1}"


def differing_place(actual: Any, expected: Any, place: str) -> str | None:
    """Return the path at which two JSON values first differ; None if they are equal."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        keys = sorted(actual.keys() | expected.keys())
        parts = [(actual.get(key), expected.get(key), f"{place}.{key}") for key in keys]
    elif isinstance(actual, list) and isinstance(expected, list):
        parts = [
            (*pair, f"{place}[{at}]") for at, pair in enumerate(zip(actual, expected, strict=False))
        ]
        if len(actual) != len(expected):
            parts.append((0, 1, f"{place}[{len(parts)}]"))
    else:
        return None if actual == expected else place
    return next((found for part in parts if (found := differing_place(*part))), None)


def normalized(value: Any) -> Any:
    """Return messages with equivalent forms normalized; see the docstring of this module."""
    if isinstance(value, list):
        return [normalized(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("content"), str) and value.keys() & {"role", "tool_use_id"}:
        value = {**value, "content": blocks(value)}
    defaults = {"is_error": False, "caller": {"type": "direct"}}
    return {
        key: normalized(inner)
        for key, inner in value.items()
        if inner is not None
        and key != "cache_control"
        and not (key in defaults and inner == defaults[key])
    }


def table() -> dict[str, str]:
    """Return the files that do not match, each with the first difference from the recorded requests."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    cells = [re.findall(r"`([^`]+)`", line) for line in lines if line.startswith("| `")]
    return {name: place for name, place, *_ in cells}
