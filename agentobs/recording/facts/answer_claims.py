"""Claims: what the wording of a response and of the results before it shows, as flags without any text.

They are computed while the text passes by, so that later queries need no content: a failed session can be recognized
from its facts alone, with content off, and over all sessions at once. Reading the vault later was the alternative;
it would show nothing if content is off. The words are English, like those of most agents: a response in another
language claims nothing, and an error that no pattern matches has the kind `semantic`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Turn
from agentobs.records.exchanges import Answer
from agentobs.records.labels import Label

LOOKED_AT = 4_000
"""How many characters of a text are searched, from its start and from its end. Our choice."""

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

_OF_THE_SYSTEM = re.compile(
    r"EACCES|\[Errno 13\]|PermissionError|(?::|^) ?permission denied", re.IGNORECASE
)
"""A file that may not be opened is not a denial, because nobody decided on the call."""

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
"""Words with which a response admits a failure: one is enough, because a false alarm costs trust. Our choice."""


def claim_of(answer: Answer, said: Sequence[Turn], dialect: Dialect) -> bool | None:
    """Return whether a response claims success and admits no failure.

    Args:
        answer: a response without tool calls.
        said: the turns that it answers.
        dialect: the provider's.

    Returns:
        None if none of the results is an error, or the response has no text or is incomplete.
    """
    results = [result for turn in said for result in turn.results]
    if not any(result.is_error for result in results) or answer.ending != "complete":
        return None
    text = _looked_at(dialect.message(answer.headers, answer.body).text)
    if not text.strip():
        return None
    return _SUCCESS.search(text) is not None and _FAILURE.search(text) is None


def error_kind(result: Block) -> Label | None:
    """Return the kind of the error in a tool result, by its words; None if it is not an error.

    `schema`: the input did not match; `denied`: the call was not permitted; `semantic`: any other error.
    """
    if not result.is_error:
        return None
    text = _looked_at(result.text)
    if _SCHEMA.search(text):
        return Label("schema")
    if _DENIED.search(text) and not _OF_THE_SYSTEM.search(text):
        return Label("denied")
    return Label("semantic")


def characters(content: Any) -> int:
    """Return the number of characters of text in a result; other content, such as an image, counts zero."""
    return len(content) if isinstance(content, str) else _characters(content)


def _characters(content: Any) -> int:
    if not isinstance(content, Sequence):
        return 0
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return sum(len(text) for text in texts if isinstance(text, str))


def _looked_at(text: str) -> str:
    return text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"
