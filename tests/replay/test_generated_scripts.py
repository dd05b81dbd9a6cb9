"""Agents whose scripts are built step by step: any combination of steps replays."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.replay.generated_proofs import Proof, prove_changed, prove_same, record_scripts
from tests.replay.generated_scripts import (
    KINDS,
    Kind,
    ModelServer,
    Script,
    add_agents,
    add_call,
    add_fault,
    add_prompt,
    add_turn,
    depth_of,
    make_full,
    model_server,
)

DRAWN = st.integers(0, 2**16).map(random.Random)
EVENTS = ("Message", "ToolDispatch", "ToolDone", "RequestStart", "TextDelta", "Retry")


class Scripts(RuleBasedStateMachine):
    """Builds a script step by step; at the end, the script is recorded, frozen and replayed, and replayed again with
    one change.
    """

    server: ModelServer
    proof: Proof
    script: Script

    @initialize(kind=st.sampled_from(KINDS), seed=st.integers(0, 999))
    def begin(self, kind: Kind, seed: int) -> None:
        self.script = Script(seed, kind)
        add_prompt(self.script)
        add_turn(self.script, "m0")

    @rule()
    @precondition(lambda self: len(self.script.prompts) < 3)
    def add_prompt(self) -> None:
        add_prompt(self.script)
        add_turn(self.script, self.script.prompts[-1])

    @rule(chance=DRAWN)
    def add_turn(self, chance: random.Random) -> None:
        add_turn(self.script, chance.choice(list(self.script.tasks)))

    @rule(chance=DRAWN, count=st.integers(1, 3))
    def add_calls(self, chance: random.Random, count: int) -> None:
        task = chance.choice([name for name, copies in self.script.tasks.items() if all(copies)])
        for _ in range(count):
            add_call(self.script, task, chance)

    @rule(chance=DRAWN)
    @precondition(lambda self: len(self.script.tasks) < 8)
    def add_agents(self, chance: random.Random) -> None:
        tasks = [name for name, copies in self.script.tasks.items() if all(copies)]
        add_agents(self.script, chance.choice([t for t in tasks if depth_of(t) < 2]), chance)

    @rule(chance=DRAWN)
    def add_fault(self, chance: random.Random) -> None:
        add_fault(self.script, chance)

    @rule(event=st.sampled_from(EVENTS), number=st.integers(1, 6))
    @precondition(lambda self: self.script.kind == "loop")
    def stop_at(self, event: str, number: int) -> None:
        self.script.stop_at = (event, number)

    @rule(number=st.integers(1, 4))
    @precondition(lambda self: self.script.kind == "loop")
    def steer_at(self, number: int) -> None:
        self.script.steer_at = number

    @rule(chance=DRAWN)
    @precondition(lambda self: self.script.kind == "loop" and not self.script.compacts)
    def make_full(self, chance: random.Random) -> None:
        make_full(self.script, chance)

    @rule(
        asks_person=st.booleans(), hooked=st.booleans(), output=st.booleans(), streams=st.booleans()
    )
    @precondition(lambda self: self.script.kind == "loop")
    def surround(self, asks_person: bool, hooked: bool, output: bool, streams: bool) -> None:
        self.script.asks_person, self.script.hooked = asks_person, hooked
        self.script.output, self.script.streams = output, streams
        self.script.follow_up = asks_person and output

    def teardown(self) -> None:
        if not hasattr(self, "script"):
            return
        with tempfile.TemporaryDirectory() as folder:
            [recorded] = record_scripts(Path(folder), [self.script], self.server)
            prove_same(recorded)
            prove_changed(recorded, self.proof)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def prove(server: ModelServer, examples: int) -> Proof:
    proof = Proof()
    machine = type("Scripts", (Scripts,), {"server": server, "proof": proof})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=14,
            deadline=None,
            derandomize=examples < 100,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return proof


@pytest.mark.slow
def test_any_script_replays(server: ModelServer) -> None:
    """Any combination of turns, calls, agents, faults, stops, steering and compactions replays, and one change is
    reported.
    """
    proof = prove(server, 5)
    assert proof.changed >= 5
    assert not proof.silent, "\n".join(proof.silent)
    assert not proof.missed, "\n".join(proof.missed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_scripts_replay(server: ModelServer) -> None:
    """A thousand scripts replay, and one change of each script is reported."""
    proof = prove(server, 1000)
    assert not proof.silent, "\n".join(proof.silent)
    assert len(proof.missed) <= proof.changed // 100, "\n".join(proof.missed)
