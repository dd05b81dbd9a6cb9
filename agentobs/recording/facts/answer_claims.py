"""Claims: what an answer and the results before it say by the way they say it, as flags without any text.

They are computed while the text passes by, so that whoever asks later needs no content: a failed session can be told
from its facts alone, with content off, and over all sessions at once. Reading the vault later was the alternative;
it would have told nothing where content is off. The words are English, as most agents' are: of an answer in another
language nothing is claimed, and a result that none of the patterns fits is of the kind `semantic`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentobs.provider.cloud_frames import is_framed, unframed
from agentobs.provider.messages import assemble, text_of, tool_results
from agentobs.records.exchanges import Answer
from agentobs.records.labels import Label

LOOKED_AT = 4_000
"""How many characters of a text are looked at, from its start and from its end. Our choice."""

_SCHEMA = re.compile(
    r"InputValidationError|validation errors?\b|invalid (?:input|arguments?|parameters?|json|tool call)"
    r"|(?:missing|required|unexpected|unknown) (?:required )?(?:argument|parameter|property|field|keyword)"
    r"|(?:parameter|argument|property|field) (?:\S+ )?is (?:missing|required)|field required"
    r"|does not (?:fit|match) the schema|no such tool|no tool named|tool \S+ (?:is )?not found|unknown tool",
    re.IGNORECASE,
)
"""What a client says of an input that does not fit: Claude Code 2.x, pydantic-ai, jsonschema, and ours."""

_DENIED = re.compile(
    r"(?:doesn't|does not) want to proceed|tool use was rejected|haven't granted"
    r"|permission to use \S+ has been denied|requires? (?:approval|permission)"
    r"|(?:permission|access|request|call|tool use|operation) (?:was |is |has been )?"
    r"(?:denied|rejected|declined|not (?:permitted|allowed))|user (?:denied|rejected|declined)",
    re.IGNORECASE,
)
"""What a client says of a call that somebody did not permit: Claude Code 2.x and ours."""

_OF_THE_SYSTEM = re.compile(
    r"EACCES|\[Errno 13\]|PermissionError|(?::|^) ?permission denied", re.IGNORECASE
)
"""A file that may not be opened is no denial: nobody decided on the call."""

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
"""Words with which an answer owns up to what went wrong: one is enough, for a false alarm costs trust. Our choice."""


def claim_of(answer: Answer, said: Sequence[dict[str, Any]]) -> bool | None:
    """Return whether an answer claims success and owns up to no failure.

    Args:
        answer: one without tool calls.
        said: the messages that it answers.

    Returns:
        None where no result that it answers is an error, or it says nothing, or did not arrive whole.
    """
    results = [result for message in said for result in tool_results(message)]
    if not any(result.get("is_error") for result in results) or answer.ending != "complete":
        return None
    if is_framed(answer.headers):
        message = assemble({"content-type": "text/event-stream"}, unframed(answer.body))
    else:
        message = assemble(answer.headers, answer.body)
    text = _looked_at(text_of(message.get("content")))
    if not text.strip():
        return None
    return _SUCCESS.search(text) is not None and _FAILURE.search(text) is None


def error_kind(result: Mapping[str, Any]) -> Label | None:
    """Return of which kind the error is that a `tool_result` block tells of, by its words; None where it is none.

    `schema`: the input did not fit; `denied`: somebody did not permit it; `semantic`: anything else.
    """
    if not result.get("is_error"):
        return None
    text = _looked_at(text_of(result.get("content")))
    if _SCHEMA.search(text):
        return Label("schema")
    if _DENIED.search(text) and not _OF_THE_SYSTEM.search(text):
        return Label("denied")
    return Label("semantic")


def characters(content: Any) -> int:
    """Return how many characters of text a result has; what is no text, such as an image, has none."""
    return len(content) if isinstance(content, str) else _characters(content)


def _characters(content: Any) -> int:
    if not isinstance(content, Sequence):
        return 0
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return sum(len(text) for text in texts if isinstance(text, str))


def _looked_at(text: str) -> str:
    return text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"
