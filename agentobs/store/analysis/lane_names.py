"""The display names of lanes: each sub-agent has the same name on pages, in figures, in reports and in the terminal.

The main agent is `main`. A sub-agent is named after the type of its agent, such as `Explore`, or `agent` if the type is
unknown. If several lanes of a session have the same type, they are numbered in the order of their first start:
`Explore 1`, `Explore 2`. Numbers count over the whole session, so the names of nested sub-agents are unique as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentobs.records.clear_text import lane_of_call
from agentobs.records.display import of_both
from agentobs.records.labels import DIGEST
from agentobs.store.port import Store

Row = Mapping[str, Any]
RestoreTexts = Callable[[Sequence[Row]], Iterable[Row]]
"""A function that replaces digests in rows by the original texts."""
TYPE_LENGTH = 20
"""The maximum number of characters of a type in a name. Our choice: names fit into a column of a table."""
AUXILIARY = re.compile(r"/(?!digest:)([a-z_]+):[^/]*$")
"""The suffix of a lane with auxiliary requests, such as `/compaction:1`. A digest is the ID of the call that started a
sub-agent.
"""


def lane_names(lanes: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the display names of the lanes of a session, by lane.

    Args:
        lanes: each lane with the type of its agent, or None if that is unknown; in the order of their first start.
    """
    types: dict[str, str | None] = {}
    for lane, kind in lanes:
        types[lane] = types.get(lane) or _type(lane, kind)
    names = {lane: lane for lane in types if "/" not in lane}
    taken = set(names.values())
    counts = Counter(types[lane] for lane in types if lane not in names)
    for lane, kind in types.items():
        if lane in names:
            continue
        name = kind if kind and counts[kind] == 1 and kind not in taken else None
        number = 0
        while name is None or name in taken:
            number += 1
            name = f"{kind or 'agent'} {number:,}"
        taken.add(name)
        names[lane] = name
    return names


def names_in_both(
    lanes: Iterable[tuple[str, tuple[str | None, str | None]]],
) -> dict[str, str]:
    """Return the display names of the lanes of a comparison, by lane: `agent 5 / agent 2` if a lane has different names
    in both sessions.

    Args:
        lanes: for each step its lane in the comparison, and the display names of this lane in both sessions; None if a
            session has no such step, or if the name is not known.
    """
    names: dict[str, list[str]] = {}
    for lane, agents in lanes:
        known = names.setdefault(lane, ["", ""])
        names[lane] = [agent or name for agent, name in zip(agents, known, strict=True)]
    types = (
        (each, each.rpartition("/")[2].partition("#")[0] if "/" in each else None) for each in names
    )
    by_rule = lane_names(types)
    return {lane: of_both(*each) or by_rule[lane] for lane, each in names.items()}


def names_in_session(store: Store, session_id: str, restore: RestoreTexts) -> dict[str, str]:
    """Return the display names of the lanes of a session, by lane.

    Args:
        store: the store.
        session_id: the session.
        restore: replaces digests of types by their texts, if they are shown.
    """
    rows = list(store.rows("internal/lane_names", session_ids=[session_id]).dicts())
    return names_of_rows(rows, restore)


def names_of_rows(rows: Sequence[Row], restore: RestoreTexts) -> dict[str, str]:
    """Return the display names of the lanes of a session, given its rows of `internal/lane_names`.

    A lane whose ID is a digest has the same name under its digest and under its text.
    """
    shown = list(restore(rows))
    names = lane_names((row["lane"], row["agent_type"]) for row in shown)
    by_digest = {row["lane"]: names[text["lane"]] for row, text in zip(rows, shown, strict=True)}
    return names | by_digest


def with_agents(rows: Iterable[Row], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return rows with the display name of their lane as `agent`, and that of `step_lane` as `step_agent`."""
    found = []
    for row in rows:
        named = dict(row)
        for column, name in (("lane", "agent"), ("step_lane", "step_agent")):
            if (lane := row.get(column)) is not None:
                named[name] = name_of_lane(str(lane), names)
        found.append(named)
    return found


def with_agents_of_sessions(
    store: Store, rows: Sequence[Row], restore: RestoreTexts
) -> list[dict[str, Any]]:
    """Return rows about lanes of several sessions with the display name of their lane as `agent`."""
    ids = sorted({str(row["session_id"]) for row in rows if "/" in str(row["lane"])})
    lanes: dict[str, list[Row]] = {}
    for each in store.rows("internal/lane_names", session_ids=ids).dicts() if ids else ():
        lanes.setdefault(each["session_id"], []).append(each)
    names = {session_id: names_of_rows(known, restore) for session_id, known in lanes.items()}
    return [
        each for row in rows for each in with_agents([row], names.get(str(row["session_id"]), {}))
    ]


def name_of_lane(lane: str, names: Mapping[str, str] | None = None) -> str:
    """Return the display name of a lane; if it has none, a suffix of the lane identifies it."""
    if names and lane in names:
        return names[lane]
    _, is_below, tail = lane.rpartition("/")
    if not is_below:
        return lane
    return f"agent {tail if len(tail) <= 12 else f'…{tail[-6:]}'}"


def agent_of_call(lane: str, call_id: str, names: Mapping[str, str]) -> str | None:
    """Return the display name of the agent that a call started; None if it started none.

    Args:
        lane: the lane of the call.
        call_id: the ID of the call; its text if the fact has a digest of it.
        names: the display names of the lanes of the session.
    """
    return names.get(f"{lane}/{call_id}") or names.get(lane_of_call(lane, call_id))


def _type(lane: str, kind: str | None) -> str | None:
    """Return the type of the agent of a lane as it is shown; a lane of auxiliary requests has their purpose."""
    if (auxiliary := AUXILIARY.search(lane)) is not None:
        return auxiliary[1].replace("_", " ")
    # A digest whose text is not known is not a name.
    if not kind or not kind.strip() or DIGEST in kind:
        return None
    shown = " ".join(kind.split())
    return shown if len(shown) <= TYPE_LENGTH else f"{shown[: TYPE_LENGTH - 1]}…"
