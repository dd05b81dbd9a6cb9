"""An agent on litellm, without agentobs."""

import json
import sys
from pathlib import Path
from typing import Any

import litellm

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
messages: list[Any] = [{"role": "user", "content": sys.argv[1]}]
while True:
    message = (
        litellm.completion(
            model="anthropic/claude-sonnet-5", max_tokens=100, messages=messages, tools=[TOOL]
        )
        .choices[0]
        .message
    )
    if not message.tool_calls:
        break
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        text = Path(json.loads(call.function.arguments)["path"]).read_text()
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(message.content)
