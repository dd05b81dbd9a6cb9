"""A ReAct agent of dspy, which sends its requests on its own sockets."""

import os
import sys
from pathlib import Path

import dspy


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


lm = dspy.LM(
    "anthropic/claude-sonnet-5",
    # dspy does not read the variable itself.
    api_base=os.environ["ANTHROPIC_BASE_URL"],
    max_tokens=100,
    cache=False,
)
adapter = dspy.ChatAdapter(use_native_function_calling=True)
with dspy.context(lm=lm, adapter=adapter):
    print(dspy.ReActV2("task -> answer", tools=[read_file])(task=sys.argv[1]).answer)
