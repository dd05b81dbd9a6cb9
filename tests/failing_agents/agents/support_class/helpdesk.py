import logging
import os
import random
import re
import time
from typing import Any, Optional

import agentobs
import anthropic

log = logging.getLogger("helpdesk")


class GaveUp(Exception):
    pass


class HelpDesk:
    """One desk, one conversation at a time."""

    max_turns = 6

    def __init__(self, client: Optional[anthropic.Anthropic] = None) -> None:
        self.client = agentobs.record(client or anthropic.Anthropic())
        self.appointments: list[str] = []

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [{
            "name": "book",
            "description": "Book a technician",
            "input_schema": {
                "type": "object",
                "properties": {"day": {"type": "string"}, "hour": {"type": "integer"}},
                "required": ["day", "hour"],
            },
        }]

    def book(self, day: str, hour: int) -> tuple[str, bool]:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
            return "invalid day", False
        self.appointments.append(f"{day} {hour}:00")
        return f"booked {day} at {hour}", True

    def _turn(self, messages: list[Any]) -> Any:
        time.sleep(random.uniform(0, float(os.environ.get("AGENT_JITTER", "0"))))
        return self.client.messages.create(
            model="claude-haiku-4-5", max_tokens=400, tools=self.tools, messages=messages
        )

    @agentobs.session("helpdesk")
    def solve(self, ticket: str) -> str:
        messages: list[Any] = [{"role": "user", "content": ticket}]
        for turn in range(self.max_turns):
            reply = self._turn(messages)
            messages.append({"role": "assistant", "content": reply.content})
            results = []
            for block in reply.content:
                if block.type == "tool_use":
                    text, ok = self.book(**block.input)
                    log.info("turn %s: %s", turn, text)
                    results.append({"type": "tool_result", "tool_use_id": block.id, "content": text, "is_error": not ok})
            if not results:
                return reply.content[0].text
            messages.append({"role": "user", "content": results})
        raise GaveUp(f"no appointment after {self.max_turns} turns")


if __name__ == "__main__":
    print(HelpDesk().solve("My boiler is cold. Can somebody come on 3 December at 9?"))
