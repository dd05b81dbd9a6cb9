"""The changes of the live requests of a fork: model, options, an additional prompt, and the limit of its cost."""

from __future__ import annotations

import json
from typing import Any

from agentobs.errors import UsageError
from agentobs.provider.dialect import Block
from agentobs.provider.registry import calls_of, dialect_of, dialect_of_body
from replay.fixture.body_parts import value_of
from replay.fixture.format import Fixture
from replay.scenario.fork_plan import Fork


class LiveChanges:
    """Changes the live requests of one fork."""

    def __init__(self, fork: Fork, fixture: Fixture) -> None:
        """Prepare the changes.

        Raises:
            UsageError: there is no place for the prompt, because the last replayed response calls no tool.
        """
        self._fork = fork
        requests = [
            each for each in fixture.requests if (each.lane, each.turn) == ("main", fork.turn)
        ]
        self._calls = {
            call.id for each in requests for call in calls_of(each.path, each.answer) if call.id
        }
        if fork.prompt is not None and requests and not self._calls:
            raise UsageError(
                f"the response of turn {fork.turn} calls no tool, so the agent may send no request that could contain "
                "the prompt",
                where="--prompt",
                todo="Choose an earlier turn",
            )

    def path(self, path: str) -> str:
        """Return the path of a request to a model: with the model of the fork, if a path of this kind names one."""
        model = self._fork.model
        return path if model is None else dialect_of(path).with_model(path, model)

    def applied(self, path: str, body: bytes) -> bytes | None:
        """Return the changed body of a request to a model; None if it is not changed.

        Raises:
            UsageError: the request cannot be changed, or its cost could exceed the limit.
        """
        fork, changed = self._fork, self._fork.changed(path, body)
        parsed = value_of(body if changed is None else changed)
        value = parsed if isinstance(parsed, dict) else {}
        if fork.prompt is not None and self._insert(value, fork.prompt):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            changed = text.encode("utf-8", "surrogatepass")
        if fork.meter is not None and dialect_of(path).makes_turns(path):
            fork.meter.admit(self.path(path), value, len(body if changed is None else changed))
        return changed

    def _insert(self, body: dict[str, Any], prompt: str) -> bool:
        """Add the prompt after the results of the last replayed response; return whether the request has them.

        Later requests get it at the same position, so the conversation stays the same.
        """
        dialect = dialect_of_body(body)
        history = body.get(dialect.history_key)
        entries = history if isinstance(history, list) else []
        with_results = [
            entry
            for entry in entries
            if isinstance(entry, dict)
            and any(each.id in self._calls for each in dialect.turn(entry).results)
        ]
        if not with_results or not isinstance(with_results[-1].get("content"), list):
            return False
        block = Block("text", "text", text=prompt)
        message = dialect.request_message("user", [block])
        with_results[-1]["content"] += message["content"]
        return True


__all__ = ["LiveChanges"]
