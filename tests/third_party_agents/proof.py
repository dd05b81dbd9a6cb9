"""The proof of one agent: it is recorded live, replayed without the provider, and replayed with two changes.

python -m tests.third_party_agents.proof pydantic_agent
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
from tests.replay.agents import frozen, last_session
from tests.replay.raw_provider import raw_provider
from tests.replay.wire_recordings import NOWHERE, recording
from tests.third_party_agents.provider import FINAL_TEXT, Provider

REPLAYS = 3
"""The number of replays of each recording, because scheduling may differ between replays."""
Run = Callable[..., str]


@dataclass(frozen=True)
class Proof:
    """The results for one agent."""

    versions: dict[str, str]
    recorded_with: str
    """The call that records the client of the agent."""
    sent: int
    """The number of requests that the provider received."""
    recorded: int
    """The number of requests in the fixture."""
    matched: tuple[int, ...]
    """The number of requests that each replay matched."""
    prompt: str
    """The divergence of a replay with a changed prompt: the request, the path and the cause."""
    tool: str
    """The divergence of a replay with a changed tool result."""


def prove(run: Run, folder: Path, provider: Provider | None = None) -> tuple[Fixture, Proof]:
    """Record and replay an agent; return the fixture and the proof."""
    provider = provider or Provider()
    with raw_provider([provider.play] * 50) as raw, recording(folder / "home"):
        live = run(raw.url)
    assert live == FINAL_TEXT, live
    fixture = frozen(folder, last_session(folder / "home"), "trip")
    matched = []
    for _ in range(REPLAYS):
        with Replayer(fixture) as replay:
            assert replay.run(run, NOWHERE) == live
        matched.append(replay.progress.requests_matched)
    return fixture, Proof(
        versions={},
        recorded_with="",
        sent=len(raw.requests),
        recorded=len(fixture.requests),
        matched=tuple(matched),
        prompt=divergence_of(fixture, run, prompt="Trip: where does it rain?"),
        tool=divergence_of(fixture, run, rome="snow"),
    )


def divergence_of(fixture: Fixture, run: Run, **changed: str) -> str:
    """Replay a changed agent; return the diverging request, the path in its body, and the cause."""
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
    """Prove the agent of a module in this folder."""
    module = importlib.import_module(f"tests.third_party_agents.{name}")
    with tempfile.TemporaryDirectory() as folder:
        _, proof = prove(module.run, Path(folder))
    versions = {package: version(package) for package in module.PACKAGES}
    found = dataclasses.replace(proof, versions=versions, recorded_with=module.RECORDED_WITH)
    return dataclasses.asdict(found)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
