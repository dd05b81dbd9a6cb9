"""Proves each failing agent and prints a table.

python -m tests.failing_agents --replays 100 --agent refund_desk --output table.md
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.failing_agents.cases.all import CASES
from tests.failing_agents.proof import Proof, prove

COLUMNS: dict[str, Callable[[Proof], str]] = {
    "agent": lambda proof: proof.case.name,
    "shape": lambda proof: proof.case.shape,
    "tools": lambda proof: proof.case.tools,
    "failure": lambda proof: proof.case.failure,
    "live": lambda proof: proof.live,
    "turn": lambda proof: f"{proof.turn} of {'/'.join(map(str, proof.case.turns))}",
    "replays": lambda proof: proof.verdict,
    "freeze CPU": lambda proof: proof.freeze_cpu,
    "pytest s": lambda proof: proof.seconds,
    "before": lambda proof: proof.before,
    "fixed": lambda proof: proof.fixed,
    "wrong": lambda proof: proof.wrong,
    "back": lambda proof: proof.back,
    "same path": lambda proof: proof.same_path,
    "flakes": lambda proof: proof.flakes,
}


def main() -> int:
    """Prove the agents; return the number of agents with defects."""
    parser = argparse.ArgumentParser(prog="python -m tests.failing_agents", description=__doc__)
    parser.add_argument(
        "--replays", type=int, default=0, help="number of replays of each agent under noise"
    )
    parser.add_argument(
        "--agent", action="append", choices=sorted(CASES), help="agent to prove; default: all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="concurrent replays")
    parser.add_argument("--keep", type=Path, help="keep projects and logs in this new directory")
    parser.add_argument("--output", type=Path, help="write the table to this file")
    options = parser.parse_args()
    proofs: list[Proof] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        for name in options.agent or CASES:
            started = time.monotonic()
            proof = prove(CASES[name], folder / name, replays=options.replays, jobs=options.jobs)
            proofs.append(proof)
            seconds = time.monotonic() - started
            failures = proof.failures or "ok"
            print(f"{name} ({seconds:.0f} s): {failures}", file=sys.stderr, flush=True)
            for flake in proof.flaky:
                print(f"  {json.dumps(flake)}", file=sys.stderr, flush=True)
            markdown = table(proofs)
            if options.output:
                options.output.write_text(markdown)
    print(markdown)
    return sum(bool(proof.failures) for proof in proofs)


def table(proofs: list[Proof]) -> str:
    """Return the proofs as a Markdown table."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS)]
    rows += [[str(column(proof)) for column in COLUMNS.values()] for proof in proofs]
    lines = (" | ".join(_cell(cell) for cell in row) for row in rows)
    return "".join(f"| {line} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(min(main(), 1))
