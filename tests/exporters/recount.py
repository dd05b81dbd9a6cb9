"""Counts the contents of session logs line by line, without the code of the importer.

python -m tests.exporters.recount          # writes transcripts.json next to this file
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("transcripts.json")


def folder() -> Path | None:
    """Return the directory of the logs, or None if it does not exist."""
    variable = os.environ.get("AGENTOBS_TRANSCRIPTS")
    directory = Path(variable) if variable else Path(__file__).parents[3] / "shared" / "transcripts"
    return directory if directory.is_dir() else None


def count(path: Path) -> dict[str, Any]:
    """Return the counts of one log."""
    last_usage: dict[str, dict[str, Any]] = {}
    models: dict[str, str] = {}
    called: set[str] = set()
    answered: dict[str, bool] = {}
    agents: set[str] = set()
    sessions: set[str] = set()
    compactions = 0
    for line in path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("subtype") in ("compact_boundary", "microcompact_boundary"):
            compactions += 1
        agent = entry.get("agentId")
        if entry.get("type") == "progress":
            if entry["data"]["type"] != "agent_progress":
                continue
            agent = entry["data"]["agentId"]
            entry = {"sessionId": entry["sessionId"], **entry["data"]["message"]}
        if entry.get("type") not in ("user", "assistant"):
            continue
        sessions.add(entry["sessionId"])
        if agent:
            agents.add(agent)
        message = entry["message"]
        content = message["content"] if isinstance(message["content"], list) else []
        if entry["type"] == "assistant":
            if message["model"] == "<synthetic>":
                continue
            last_usage[message["id"]], models[message["id"]] = message["usage"], message["model"]
            called |= {block["id"] for block in content if block["type"] == "tool_use"}
        else:
            for block in content:
                if block["type"] == "tool_result":
                    answered[block["tool_use_id"]] = bool(block.get("is_error"))
    used = list(last_usage.values())
    return {
        "sessions": sorted(sessions),
        "responses": len(last_usage),
        "models": sorted(set(models.values())),
        "tool_calls": len(called),
        "tool_results": len(called & answered.keys()),
        "tool_errors": sum(answered[each] for each in called & answered.keys()),
        "agents": len(agents),
        "compactions": compactions,
        "input_tokens": sum(each["input_tokens"] for each in used),
        "output_tokens": sum(each["output_tokens"] for each in used),
        "cache_read_tokens": sum(each["cache_read_input_tokens"] for each in used),
        "cache_write_tokens": sum(each["cache_creation_input_tokens"] for each in used),
    }


def main() -> None:
    """Rewrite the table."""
    place = folder()
    assert place is not None
    found = {str(p.relative_to(place)): count(p) for p in sorted(place.rglob("*.jsonl"))}
    TABLE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
