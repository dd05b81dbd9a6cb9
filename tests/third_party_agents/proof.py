"""The proof of one agent: it is recorded live, replayed without the provider, and replayed with two changes.

What was recorded is compared with what the provider counted. If agentobs cannot record an agent, the proof is that
agentobs reports this.

python -m tests.third_party_agents.proof pydantic_agent
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentobs.store.duckdb.connection import connect
from replay import DivergenceError, Fixture, Replayer
from tests.replay.agents import frozen, last_session
from tests.replay.raw_provider import raw_provider
from tests.replay.wire_recordings import NOWHERE, recording
from tests.third_party_agents.environments import PROGRAMS
from tests.third_party_agents.provider import FINAL_TEXT, Counts, Provider, has_weather_in_rome

REPLAYS = 3
"""The number of replays of each recording in the test suite, because scheduling may differ between replays."""
TABLE_REPLAYS = 10
"""The number of replays of each recording for the table in docs/agents.md."""
REQUESTS_MAX = 50
"""The number of requests that the provider answers before it stops an agent that does not end."""
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
    provider: Counts
    """What the provider counted."""
    store: Counts
    """What the recording contains."""
    matched: tuple[int, ...]
    """The number of requests that each replay matched."""
    errors: tuple[str, ...]
    """The error of each replay; empty if the replay ended as the recorded run did."""
    with_result: int
    """The first recorded request that contains the tool result that is changed."""
    prompt: str
    """The divergence of a replay with a changed prompt: the request, the path and the cause."""
    tool: str
    """The divergence of a replay with a changed tool result."""

    def problems(self) -> list[str]:
        """Return each respect in which the recording differs from what the provider counted or from its replays."""
        found = [f"replay: {error}" for error in self.errors if error]
        if any(count != self.recorded for count in self.matched):
            found.append(f"the replays matched {self.matched} of {self.recorded} requests")
        for field in dataclasses.fields(Counts):
            counted, stored = (getattr(each, field.name) for each in (self.provider, self.store))
            if counted != stored:
                found.append(f"{field.name}: the provider counted {counted}, recorded are {stored}")
        for change, number, diverged in (
            ("prompt", 1, self.prompt),
            ("tool result", self.with_result, self.tool),
        ):
            if diverged.partition(",")[0] != f"request {number}":
                found.append(f"the changed {change} gave {diverged}, expected was request {number}")
        return found


@dataclass(frozen=True)
class Refusal:
    """The results for an agent that agentobs reports as not recordable."""

    versions: dict[str, str]
    recorded_with: str
    provider: Counts
    store: Counts
    warning: str
    """The warning at the end of `record_all`; empty if there was none."""

    def problems(self) -> list[str]:
        """Return why this refusal is not honest."""
        found = [] if self.warning else ["agentobs recorded no request and did not warn"]
        if self.store.requests:
            found.append(f"{self.store.requests} requests were recorded")
        return found


def prove(
    run: Run, folder: Path, provider: Provider | None = None, replays: int = REPLAYS
) -> tuple[Fixture, Proof]:
    """Record and replay an agent; return the fixture and the proof."""
    provider = provider or Provider()
    with raw_provider([provider.play] * REQUESTS_MAX) as raw, recording(folder / "home"):
        live = run(raw.url)
    assert live == FINAL_TEXT, live
    fixture = frozen(folder, last_session(folder / "home"), "trip")
    matched, errors = zip(*(_replay(fixture, run, live) for _ in range(replays)), strict=True)
    return fixture, Proof(
        versions={},
        recorded_with="",
        sent=len(raw.requests),
        recorded=len(fixture.requests),
        provider=provider.counts(),
        store=stored(folder / "home"),
        matched=matched,
        errors=errors,
        with_result=next(
            each.number
            for each in fixture.requests
            if has_weather_in_rome(fixture.body(each.number))
        ),
        prompt=divergence_of(fixture, run, prompt="Trip: where does it rain?"),
        tool=divergence_of(fixture, run, rome="snow"),
    )


def _replay(fixture: Fixture, run: Run, live: str) -> tuple[int, str]:
    """Replay an agent; return how many requests matched, and the error, or an empty text if there was none."""
    error = ""
    replay = Replayer(fixture)
    try:
        with replay:
            text = replay.run(run, NOWHERE)
        if text != live:
            error = f"the agent ended with {text!r}"
    except Exception as failure:  # whatever the framework makes of a divergence
        error = f"{type(failure).__name__}: {failure}"
    return replay.progress.requests_matched, error


def stored(home: Path) -> Counts:
    """Return what a home contains."""
    sql = "SELECT sum(attempts), sum(turns), sum(tool_calls), sum(interactions), sum(cost_usd) FROM sessions"
    with connect(home) as connection:
        [(requests, turns, calls, interactions, cost_usd)] = connection.execute(sql).fetchall()
    numbers = (int(requests), int(turns), int(calls), int(interactions))
    return Counts(*numbers, cost_usd=cost_usd or Decimal())


def refuse(run: Run, folder: Path) -> Refusal:
    """Run an agent whose requests agentobs cannot see; return the proof that agentobs reports this."""
    provider = Provider()
    with (
        warnings.catch_warnings(record=True) as caught,
        raw_provider([provider.play] * REQUESTS_MAX) as raw,
        recording(folder / "home"),
    ):
        warnings.simplefilter("always")
        text = run(raw.url)
    assert text == FINAL_TEXT, text
    own = [str(each.message) for each in caught if "agentobs" in str(each.message)]
    return Refusal(
        versions={},
        recorded_with="",
        provider=provider.counts(),
        store=stored(folder / "home"),
        warning=next((each for each in own if "saw no request" in each), ""),
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
    proof: Proof | Refusal
    with tempfile.TemporaryDirectory() as folder:
        if getattr(module, "IS_RECORDED", True):
            _, proof = prove(module.run, Path(folder), replays=TABLE_REPLAYS)
        else:
            proof = refuse(module.run, Path(folder))
    versions = {package: version(package) for package in module.PACKAGES}
    if (program := getattr(module, "PROGRAM", None)) is not None:
        versions[program] = PROGRAMS[program].partition("==")[2]
    found = dataclasses.replace(proof, versions=versions, recorded_with=module.RECORDED_WITH)
    return {**dataclasses.asdict(found), "problems": found.problems()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), default=str))
