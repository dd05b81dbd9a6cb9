"""Replay agents in this process, and print the results as one JSON object.

`python -m tests.replay.replay_process FOLDER`: the folder contains fixtures named KIND-SEED, as
`generated_proofs.record_scripts` creates them, and copies of the committed fixture `refund-loop`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from agentobs.cli.demo import refund_agent
from replay import Replayer, load
from replay.pytest_plugin.snapshot import TrajectoryExtension
from tests.replay.generated_agents import agent_of
from tests.replay.generated_proofs import exchanged
from tests.replay.generated_scripts import script_of
from tests.replay.nested_agents import Noise


def replayed(folder: Path) -> dict[str, list[object]]:
    """Replay each fixture; return each agent's result, events, requests, responses, steps and snapshot."""
    found: dict[str, list[object]] = {}
    for path in sorted(folder.iterdir()):
        fixture = load(path)
        fixture.header["recorded_on"] = "2026-11-22"
        with Replayer(fixture) as replay:
            results, events = answered(replay, path.name)
        found[path.name] = [
            results,
            events,
            repr(exchanged(list(replay.records))),
            replay.trajectory,
            TrajectoryExtension().serialize(replay),
        ]
    return found


def answered(replay: Replayer, name: str) -> tuple[object, object]:
    """Replay the agent of a fixture; return its result and its events."""
    if name == "refund-loop":
        return repr(replay.run(refund_agent.answer, **replay.fixture.header["arguments"])), []
    kind, _, seed = name.partition("-")
    script = script_of(int(seed), kind)  # type: ignore[arg-type]
    agent = agent_of(script, None, None, Noise(int(seed)))
    return replay.run(agent.answer), agent.ran.events


def become(user: str) -> None:
    """Switch to another user if this process may. All modules are imported earlier, because the other user may not read
    them.
    """
    replayed(Path(sys.argv[1]))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))


if __name__ == "__main__":
    become(os.environ["AS_USER"])
    print(json.dumps(replayed(Path(sys.argv[1]))))
