"""The proof of one agent: recorded live, replayed with the provider gone, and then changed in two ways.

python -m tests.agents_elsewhere.proof pydantic_agent
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replay import DivergenceError, Fixture, Replayer
from tests.agents_elsewhere.provider import SAID, Provider
from tests.replay.agents import frozen, last_session
from tests.replay.on_the_wire import NOWHERE, recording
from tests.replay.raw_provider import raw_provider

REPLAYS = 3
"""How often each recording is replayed: what the scheduler does may not be the same."""
Run = Callable[..., str]


@dataclass(frozen=True)
class Proof:
    """What came of one agent."""

    versions: dict[str, str]
    handed_in: str
    """How its client is recorded."""
    asked: int
    """Requests that the provider got."""
    recorded: int
    """Requests in the fixture."""
    matched: tuple[int, ...]
    """Requests that each replay matched."""
    prompt: str
    """The divergence of another prompt: its first line, and the first place that differs."""
    tool: str
    """That of another result of a tool."""


def prove(run: Run, folder: Path, provider: Provider | None = None) -> tuple[Fixture, Proof]:
    """Record and replay an agent; return its fixture, and what came of it."""
    provider = provider or Provider()
    with raw_provider([provider.play] * 50) as raw, recording(folder / "home"):
        live = run(raw.url)
    assert live == SAID, live
    fixture = frozen(folder, last_session(folder / "home"), "trip")
    matched = []
    for _ in range(REPLAYS):
        with Replayer(fixture) as replay:
            assert replay.run(run, NOWHERE) == live
        matched.append(replay.progress.requests_matched)
    return fixture, Proof(
        versions={},
        handed_in="",
        asked=len(raw.asked),
        recorded=len(fixture.asks),
        matched=tuple(matched),
        prompt=diverged(fixture, run, prompt="Trip: where does it rain?"),
        tool=diverged(fixture, run, rome="snow"),
    )


def diverged(fixture: Fixture, run: Run, **changed: str) -> str:
    """Run a changed agent; return where it parts, in what, and why."""
    try:
        with Replayer(fixture) as replay:
            replay.run(run, NOWHERE, **changed)
    except DivergenceError as error:
        found = error.divergence
        first = f"request {found.number}"
        if not found.differences:
            return first
        why = found.why.partition("\n")[0].partition(":")[0]
        return f"{first}, `{found.differences[0].path}`: {why}"
    return "no divergence"


def main(name: str) -> dict[str, Any]:
    """Prove the agent of a module of this folder."""
    module = importlib.import_module(f"tests.agents_elsewhere.{name}")
    with tempfile.TemporaryDirectory() as folder:
        _, proof = prove(module.run, Path(folder))
    versions = {package: version(package) for package in module.PACKAGES}
    found = dataclasses.replace(proof, versions=versions, handed_in=module.HANDED_IN)
    return dataclasses.asdict(found)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
