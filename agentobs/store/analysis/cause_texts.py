"""The texts of causes: one line for each step, and its content.

Titles of prompts, paths and names are content. A line without content has the kinds, numbers and labels of the facts
only, and numbers the files.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentobs.effects.workspaces.file_changes import patch, tree_changes
from agentobs.effects.workspaces.kept_states import state
from agentobs.effects.workspaces.shadow_git import ShadowGitError, existing_shadow
from agentobs.effects.workspaces.state_facts import path_text
from agentobs.errors import AgentobsError
from agentobs.provider.registry import calls_of
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.records.display import seconds
from agentobs.store.analysis.effect_causes import UNKNOWN, CauseEdge, CauseGraph, CauseNode
from agentobs.store.analysis.lane_names import name_of_lane, names_in_session
from agentobs.store.label_texts import DIGEST, LabelTexts
from agentobs.store.port import Store
from agentobs.store.session_texts import prompt_of, prompt_title

KINDS = {
    "prompt": "prompt",
    "request": "request",
    "tool_call": "tool call",
    "command": "command",
    "mcp_call": "MCP call",
    "file_change": "file",
    "unknown": "unknown cause",
}
"""The name of each kind of node."""
OPEN_MAX = 5
"""The maximum number of open calls that are listed. Our choice."""
CONTENT_LINES_MAX = 20
"""The maximum number of lines of the content of a step that are shown. Our choice."""
CONTENT_BYTES_MAX = 2 * 1024 * 1024
"""Larger files are not compared line by line. Our choice."""


@dataclass(frozen=True, slots=True)
class ShownCause:
    """One step of a chain of causes, as it is shown."""

    node: CauseNode
    depth: int
    kind: str
    name: str
    """The tool, the program, the path or the title of the prompt; may be content."""
    detail: str
    """The facts: outcome, sizes, duration."""
    evidence: str
    """How the cause is known, such as `inferred: only_call`; empty for a step without a cause."""
    is_result: bool = False
    """Whether it is the request with the result of the tool call above it."""

    @property
    def line(self) -> str:
        """The step in one line, without its evidence."""
        return ", ".join(part for part in (f"{self.kind} {self.name}".strip(), self.detail) if part)


class CauseTexts:
    """The texts of the causes of one session."""

    def __init__(self, store: Store, session_id: str, labels: LabelTexts | None = None) -> None:
        """Read texts from the content of a session.

        Args:
            store: the store.
            session_id: the session.
            labels: the texts of digests, if they are already read.
        """
        self._store, self._session_id = store, session_id
        self._labels = labels or LabelTexts(store)
        self._vaults: dict[str, Vault] = {}
        self._agents: dict[bool, dict[str, str]] = {}

    def paths(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the known texts of digests, such as paths."""
        return self._labels.texts_of(each for each in digests if DIGEST.fullmatch(each))

    def agent(self, lane: str, *, content: bool = True) -> str:
        """Return the display name of a lane; without content, the types of agents are shown only if they are labels."""
        if content not in self._agents:
            self._agents[content] = names_in_session(
                self._store,
                self._session_id,
                self._labels.replace_in_dicts if content else list,
            )
        return name_of_lane(lane, self._agents[content])

    def shown(self, graph: CauseGraph, *, content: bool = True) -> list[ShownCause]:
        """Return the steps of a graph in the order of its outline.

        Args:
            graph: the graph.
            content: whether names may be content: paths, titles of prompts, and names that people or models chose.
        """
        digests = {text for node in graph.nodes for text in DIGEST.findall(_names(node))}
        texts = self._labels.texts_of(digests) if content else {}
        numbers: dict[str, int] = {}

        def named(text: str) -> str:
            return DIGEST.sub(lambda found: texts.get(found[0], found[0][:15]), text)

        def file(digest: str) -> str:
            return texts.get(digest) or str(numbers.setdefault(digest, len(numbers) + 1))

        shown = []
        for step in graph.outline():
            node = step.node
            name, detail = _described(node, named, file, partial(self.agent, content=content))
            if node.kind == "prompt":
                name = f'"{self.title(node)}"' if content and self.title(node) else ""
            kind = "result in" if step.is_result else KINDS[node.kind]
            known = evidence(step.edges)
            shown.append(ShownCause(node, step.depth, kind, name, detail, known, step.is_result))
        return shown

    def title(self, node: CauseNode) -> str:
        """Return the title of a prompt; empty if it is not known."""
        text = self._prompt(node)
        return prompt_title(text) if text else ""

    def content(self, node: CauseNode, most: int = CONTENT_LINES_MAX) -> list[str]:
        """Return the content of a step as lines, without the middle of a long text; a reason if it cannot be read.

        Args:
            node: the step.
            most: the maximum number of lines.
        """
        try:
            lines = list(self._content(node))
        except ShadowGitError as error:
            return [f"the files cannot be read: {error.reason}"]
        except (AgentobsError, OSError, ValueError, LookupError) as error:
            return [f"the content cannot be read: {error}"]
        if len(lines) <= most:
            return lines
        half = most // 2
        return [*lines[:half], f"... {len(lines) - 2 * half:,} lines", *lines[-half:]]

    def _content(self, node: CauseNode) -> Iterator[str]:
        row = node.row
        match node.kind:
            case "prompt":
                yield from self._prompt(node).splitlines()
            case "tool_call":
                yield from self._input(row).splitlines()
            case "command":
                value = self._effect(row)
                yield from f"$ {shlex.join(value.get('argv', []))}".splitlines()
                yield f"in {value.get('directory', '')}"
            case "mcp_call":
                value = self._effect(row)
                for name, key in (("request", "params"), ("response", "result")):
                    part = value.get(name, {})
                    yield f"{name} {json.dumps(part.get(key, part), ensure_ascii=False)}"
            case "file_change":
                yield from self.diff(row)
            case _:
                return

    def diff(self, row: Mapping[str, Any]) -> list[str]:
        """Return the lines of the patch of a changed file.

        Args:
            row: a row of `internal/cause_changes`.

        Raises:
            UsageError, DamagedError: the states of the workspace are not in this home, or cannot be read.
            ShadowGitError: git failed.
        """
        if max(row["previous_bytes"] or 0, row["bytes"] or 0) > CONTENT_BYTES_MAX:
            return ["the file is too large to show its changes"]
        if row["lines_added"] is None and row["change"] != "renamed":
            return ["a binary file, or a file whose content was not recorded"]
        home, workspace_id = self._store.home, str(row["workspace_id"])
        path = self.paths([row["path"]]).get(row["path"])
        shadow = existing_shadow(home, workspace_id)
        before = state(home, workspace_id, self._session_id, int(row["previous_state"]))
        after = state(home, workspace_id, self._session_id, int(row["state"]))
        changes = tree_changes(shadow, before.tree, after.tree)
        change = next((each for each in changes if path_text(each.path) == path), None)
        if change is None:
            return ["the path is no longer known"]
        paths = [each for each in (change.old_path, change.path) if each is not None]
        found = patch(shadow, before.tree, after.tree, paths)
        lines = found.decode("utf-8", "backslashreplace").splitlines()
        return [each for each in lines if not each.startswith(("diff --git ", "index "))]

    def _vault(self, segment_id: str) -> Vault:
        if segment_id not in self._vaults:
            self._vaults[segment_id] = Vault(self._store.home, segment_id, self._session_id)
        return self._vaults[segment_id]

    def _prompt(self, node: CauseNode) -> str:
        row = node.row
        if row["request_content"] is None:
            return ""
        return prompt_of(self._vault(str(row["segment_id"])), str(row["request_content"]))

    def _input(self, row: Mapping[str, Any]) -> str:
        found = self._store.rows("internal/attempt", attempt_id=row["attempt_id"]).first()
        if found is None or found["response_content"] is None or row["runs_on"] != "client":
            return "(no content was recorded)"
        vault = self._vault(str(found["segment_id"]))
        path = str(vault.value(str(found["request_content"]))["path"])
        calls = calls_of(path, vault.answer(str(found["response_content"])))
        return json.dumps(calls[int(row["ordinal"]) - 1].value, ensure_ascii=False, indent=2)

    def _effect(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if row["content"] is None:
            return {}
        line = self._vault(str(row["segment_id"])).value(str(row["content"]))
        value: dict[str, Any] = json.loads(text_bytes(line))
        return value


def effect_text(node: CauseNode) -> tuple[str, str]:
    """Return the name and the facts of an effect; both may contain digests."""
    return _described(node, str, str, str)


def evidence(edges: Sequence[CauseEdge]) -> str:
    """Return how the cause of a step is known: its certainty and rule; the nearest cause first."""
    known = [each for each in reversed(edges) if each.rule != UNKNOWN]
    if not known:
        return ""
    first, *others = (f"{each.certainty}: {each.rule}" for each in known)
    return f"{first} (its tool call {', '.join(others)})" if others else first


def unknown_text(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return why the cause of an effect is not known.

    Args:
        row: the row of a node of the kind `unknown`.
        names: the tool calls that were open.
    """
    if row["reason"] == "no_call":
        return "no tool call is known to have started it"
    count = int(row["candidates"])
    if count == 0:
        return "no tool call was open; something outside the session may have changed it"
    listed = (
        f" ({', '.join(names[:OPEN_MAX])}{', ...' if len(names) > OPEN_MAX else ''})"
        if names
        else ""
    )
    were = "1 tool call was" if count == 1 else f"{count} tool calls were"
    return f"{were} open{listed}; none is known to have changed it"


def _names(node: CauseNode) -> str:
    opened = " ".join(name for name, _ in node.row.get("open", ()))
    return f"{node.name} {node.lane} {node.row.get('previous_path') or ''} {opened}"


def _described(
    node: CauseNode,
    named: Callable[[str], str],
    file: Callable[[str], str],
    agent: Callable[[str], str],
) -> tuple[str, str]:
    """Return the name and the facts of a node."""
    row = node.row
    match node.kind:
        case "request":
            place = (
                f"turn {node.turn:,} of {agent(str(node.lane))}"
                if node.turn
                else agent(str(node.lane))
            )
            return place, ", ".join(
                each for each in (named(node.name), row["outcome"], row["stop_reason"]) if each
            )
        case "tool_call":
            return named(node.name), _joined(
                row["outcome"] or "no result", row["error_code"], _bytes("input", row["input_bytes"]),
                _bytes("result", row["result_bytes"]), seconds(row["duration_ns"]),
            )  # fmt: skip
        case "command":
            ended = {
                "exited": f"exit code {row['exit_code']}",
                "signaled": f"ended by {row['signal']}",
            }
            return f"{row['number']} {named(node.name)}", _joined(
                ended.get(row["outcome"], row["outcome"].replace("_", " ")), seconds(row["duration_ns"]),
                _bytes("stdout", row["stdout_bytes"]), _bytes("stderr", row["stderr_bytes"]),
            )  # fmt: skip
        case "mcp_call":
            return named(node.name).strip(), _joined(
                row["outcome"].replace("_", " "), seconds(row["duration_ns"]),
                _bytes("request", row["request_bytes"]), _bytes("response", row["response_bytes"]),
            )  # fmt: skip
        case "file_change":
            former = f"from {file(row['previous_path'])}" if row["previous_path"] else None
            lines = None
            if row["lines_added"] is not None or row["lines_removed"] is not None:
                lines = f"+{row['lines_added'] or 0:,} -{row['lines_removed'] or 0:,} lines"
            size = f"{row['bytes']:,} bytes" if row["bytes"] is not None else None
            return file(node.name), _joined(
                " ".join(each for each in (row["change"], former) if each), size, lines,
                "recorded late" if row["late"] else None,
            )  # fmt: skip
        case "unknown":
            listed = [f"{named(name)} of turn {turn}" for name, turn in row.get("open", ())]
            return "", unknown_text(row, listed)
        case _:
            return "", ""


def _joined(*parts: str | None) -> str:
    return ", ".join(each for each in parts if each)


def _bytes(name: str, size: int | None) -> str | None:
    return f"{name} {size:,} bytes" if size is not None else None


__all__ = ["KINDS", "CauseTexts", "ShownCause", "effect_text", "evidence", "unknown_text"]
