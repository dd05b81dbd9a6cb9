"""Replay generated agents in this process, and print the results as one JSON object.

`python -m tests.replay.replay_process FOLDER`: the folder contains fixtures named KIND-SEED, as
`generated_proofs.record_scripts` creates them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from replay import Replayer, load
from tests.replay.generated_agents import agent_of
from tests.replay.generated_proofs import exchanged
from tests.replay.generated_scripts import script_of
from tests.replay.nested_agents import Noise


def replayed(folder: Path) -> dict[str, list[object]]:
    """Replay each fixture; return the result of each agent, its events, all requests and answers, and its steps."""
    found: dict[str, list[object]] = {}
    for fixture in sorted(folder.iterdir()):
        kind, _, seed = fixture.name.partition("-")
        script = script_of(int(seed), kind)  # type: ignore[arg-type]
        agent = agent_of(script, None, None, Noise(int(seed)))
        with Replayer(load(fixture)) as replay:
            results = replay.run(agent.answer)
        records = list(replay.records)
        found[fixture.name] = [
            results,
            agent.ran.events,
            repr(exchanged(records)),
            replay.trajectory,
        ]
    return found


def become(user: str) -> None:
    """Switch to another user, if this process may. All modules are imported before, because that user may not read
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
