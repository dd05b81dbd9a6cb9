"""Answer claims: flags without text that are derived from the wording of a response and of earlier tool results.

They are computed while content is recorded, so later queries need no content. A failed session can be recognized from
its facts alone, even if its content was not recorded, and one query can search all sessions. Rejected: reading the
vault later, because it contains nothing if content is off. The patterns are English, like the texts of most agents. A
response in another language claims nothing, and an error that no pattern matches has the kind `semantic`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Turn
from agentobs.records.exchanges import Answer
from agentobs.records.labels import Label

SEARCHED_CHARACTERS = 4_000
"""The maximum number of characters of a text that are searched at its start, and at its end. Our choice."""

_SCHEMA = re.compile(
    r"InputValidationError|validation errors?\b|invalid (?:input|arguments?|parameters?|json|tool call)"
    r"|(?:missing|required|unexpected|unknown) (?:required )?(?:argument|parameter|property|field|keyword)"
    r"|(?:parameter|argument|property|field) (?:\S+ )?is (?:missing|required)|field required"
    r"|does not (?:fit|match) the schema|no such tool|no tool named|tool \S+ (?:is )?not found|unknown tool",
    re.IGNORECASE,
)
"""How clients describe an input that does not match the schema: Claude Code 2.x, pydantic-ai, jsonschema, and agentobs.
"""

_DENIED = re.compile(
    r"(?:doesn't|does not) want to proceed|tool use was rejected|haven't granted"
    r"|permission to use \S+ has been denied|requires? (?:approval|permission)"
    r"|(?:permission|access|request|call|tool use|operation) (?:was |is |has been )?"
    r"(?:denied|rejected|declined|not (?:permitted|allowed))|user (?:denied|rejected|declined)",
    re.IGNORECASE,
)
"""How clients describe a call that was not permitted: Claude Code 2.x and agentobs."""

_SYSTEM_ERROR = re.compile(
    r"EACCES|\[Errno 13\]|PermissionError|(?::|^) ?permission denied", re.IGNORECASE
)
"""Matches an error of the operating system that refuses access to a file. This is not a denial: no user or rule has
denied the call.
"""

_TIMEOUT = re.compile(
    r"\s*(?:<tool_use_error>\s*)?(?:error\b[^\n:]{0,60}:\s*)?"
    r"(?:(?-i:(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Time(?:d)?_?[Oo]ut|DeadlineExceeded)\w*)\s*(?:[:(]|\Z)"
    r"|(?:the )?(?:\w+ ){0,4}timed out\b|(?:the )?(?:\w+ ){0,2}timeout (?:exceeded|expired|of|after|reached)\b)",
    re.IGNORECASE,
)
"""Matches an error text that begins with the class of a timeout, such as `TimeoutError`, `httpx.ReadTimeout` or
`asyncio.TimeoutError`, or with such a sentence. A timeout in the middle of a text may be part of a quoted
output.
"""

_SUCCESS = re.compile(
    r"\bsuccess(?:ful(?:ly)?)?\b|\bsucceed(?:s|ed)?\b|\b(?:all )?(?:is |are |it's |that's |all )?done\b|\bcompleted?\b"
    r"|\b(?:is|are|has been|have been|was|were|i've|i have|now) (?:now |been )?"
    r"(?:fixed|resolved|created|updated|deleted|removed|sent|saved|installed|deployed|booked|refunded|working|ready|finished)\b"
    r"|\btests? (?:all |now )?pass(?:es|ed)?\b|\bworks? (?:now|as expected|correctly)\b",
    re.IGNORECASE,
)
"""Words that claim success. Our choice."""

_FAILURE = re.compile(
    r"\bfail(?:s|ed|ing|ures?)?\b|\berrors?\b|\bunable\b|\bcannot\b|\bunfortunately\b|\bsorry\b|\bapologi[sz]e"
    r"|\b(?:could|can|did|do|does|was|were|is|are|has|have|would)(?:n't|n’t| not)\b"
    r"|\bproblems?\b|\bissues?\b|\bden(?:y|ied)\b|\bunsuccessful|\binvalid\b|\bexception\b|\btimed? ?out\b"
    r"|\bnot (?:been |be )?(?:able|found|possible|available|permitted|allowed|done|completed?|successful)\b"
    r"|\brejected\b|\bblocked\b|\bmissing\b|\binstead\b|\balternative|\btry again\b|\bhowever\b",
    re.IGNORECASE,
)
"""Words with which a response admits a failure. One of them is enough, to avoid false alarms. Our choice."""


def claim_of(answer: Answer, last_turns: Sequence[Turn], dialect: Dialect) -> bool | None:
    """Return whether a response claims success and admits no failure.

    Args:
        answer: a response without tool calls.
        last_turns: the turns to which it responds.
        dialect: the dialect of the provider.

    Returns:
        None if no tool result is an error, if the response has no text, or if the response is incomplete.
    """
    results = [result for turn in last_turns for result in turn.results]
    if not any(result.is_error for result in results) or answer.ending != "complete":
        return None
    text = _start_and_end(dialect.message(answer.headers, answer.body).text)
    if not text.strip():
        return None
    return _SUCCESS.search(text) is not None and _FAILURE.search(text) is None


def error_kind(result: Block) -> Label | None:
    """Return the kind of the error in a tool result, according to its words; None if it is not an error.

    `schema`: the input did not match the schema; `denied`: the call was not permitted; `timeout`: the tool, or an
    operation in it, took too long; `semantic`: any other error.
    """
    if not result.is_error:
        return None
    text = _start_and_end(result.text)
    if says_timeout(text):
        return Label("timeout")
    if _SCHEMA.search(text):
        return Label("schema")
    if _DENIED.search(text) and not _SYSTEM_ERROR.search(text):
        return Label("denied")
    return Label("semantic")


def says_timeout(content: Any) -> bool:
    """Return whether an error text begins with the class of a timeout, or reports that something timed out.

    Args:
        content: the content of a result: a text, or a list of parts.
    """
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = next((each for each in texts if isinstance(each, str)), "")
    return isinstance(content, str) and _TIMEOUT.match(content[:SEARCHED_CHARACTERS]) is not None


def characters(content: Any) -> int:
    """Return the number of characters of text in a result; other content, such as images, is not counted."""
    return len(content) if isinstance(content, str) else _characters(content)


def _characters(content: Any) -> int:
    if not isinstance(content, Sequence):
        return 0
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return sum(len(text) for text in texts if isinstance(text, str))


def _start_and_end(text: str) -> str:
    return (
        text
        if len(text) <= 2 * SEARCHED_CHARACTERS
        else f"{text[:SEARCHED_CHARACTERS]}\n{text[-SEARCHED_CHARACTERS:]}"
    )
