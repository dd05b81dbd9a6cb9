"""Answer claims: the flags that are derived from the words of a response and of failed tool results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentobs.provider.dialect import Turn
from agentobs.provider.registry import DIALECTS
from agentobs.recording.facts import answer_claims
from agentobs.recording.facts.answer_claims import characters
from agentobs.records.exchanges import Answer, Chunk, Ending
from tests.provider_script import streamed, text

FAILED = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no", "is_error": True}
FINE = {"type": "tool_result", "tool_use_id": "toolu_2", "content": "yes"}


def answer(*content: dict[str, Any], ending: Ending = "complete") -> Answer:
    body = json.dumps({"role": "assistant", "content": content}).encode()
    return Answer(200, {"content-type": "application/json"}, (Chunk(body, 1),), ending)


def turns_with(*results: dict[str, Any]) -> list[Turn]:
    return [DIALECTS[0].turn({"role": "user", "content": list(results)})]


def claim_of(response: Answer, turns: list[Turn]) -> bool | None:
    return answer_claims.claim_of(response, turns, DIALECTS[0])


def error_kind(result: dict[str, Any]) -> str | None:
    [block] = turns_with(result)[0].results
    return answer_claims.error_kind(block)


@pytest.mark.parametrize(
    ("words", "claims"),
    [
        ("Done. All tests pass now.", True),
        ("The refund was successfully booked.", True),
        ("I've fixed the import.", True),
        ("The file has been updated.", True),
        ("I could not book the refund.", False),
        ("The tests are done, but two of them failed.", False),
        ("I wasn't able to finish. It is not done.", False),
        ("Unfortunately the server was unreachable; nothing is saved.", False),
        ("Bern is the capital of Switzerland.", False),
        ("Das ist erledigt.", False),
        ("Which of the two files do you mean?", False),
        (" ", None),
    ],
)
def test_words_that_claim_success(words: str, claims: bool | None) -> None:
    """A response claims success only if it contains a word for success, and no word that admits a failure."""
    assert claim_of(answer(text(words)), turns_with(FAILED)) is claims


def test_responses_without_a_claim() -> None:
    """Only a complete response, streamed or not, to a turn with a failed tool result has a claim."""
    done = text("All done.")
    assert claim_of(answer(done), turns_with(FINE)) is None
    assert claim_of(answer(done), []) is None
    assert claim_of(answer(done, ending="cut"), turns_with(FAILED)) is None
    assert claim_of(answer(), turns_with(FAILED)) is None
    assert claim_of(answer(done), turns_with(FAILED, FINE)) is True
    assert claim_of(streamed(done), turns_with(FAILED)) is True
    assert (
        claim_of(answer(text("Done. " + "x " * 9000 + "But it failed.")), turns_with(FAILED))
        is False
    )


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("<tool_use_error>InputValidationError: Edit failed", "schema"),
        ('2 validation errors:\n```json\n[{"type": "missing"', "schema"),
        ("The required parameter `file_path` is missing", "schema"),
        ("No such tool available: Frobnicate", "schema"),
        ("The user doesn't want to proceed with this tool use. The tool use was rejected", "denied"),
        ("Permission to use Bash has been denied.", "denied"),
        ("Claude requested permissions to write to /etc, but you haven't granted it yet.", "denied"),
        ("cat: /etc/shadow: Permission denied", "semantic"),
        ("[Errno 13] Permission denied: '/etc/shadow'", "semantic"),
        ("Exit code 1\nFAIL: test_refund", "semantic"),
        ("<tool_use_error>File does not exist.</tool_use_error>", "semantic"),
        ("", "semantic"),
        ("TimeoutError: the order service did not answer", "timeout"),
        ("asyncio.TimeoutError", "timeout"),
        ("Error: httpx.ReadTimeout: no answer", "timeout"),
        ("Error executing tool refund: ConnectTimeout()", "timeout"),
        ("Command timed out after 120 s", "timeout"),
        ("The request timed out.", "timeout"),
        ("FAIL: test_login\nTimeoutError: in the tested program", "semantic"),
        ("timeout_seconds: not a number", "semantic"),
    ],
)  # fmt: skip
def test_failed_results_are_classified_by_their_words(words: str, kind: str) -> None:
    """The words of a failed tool result show whether the input was invalid, the call was denied, or the tool failed."""
    assert error_kind({**FAILED, "content": words}) == kind
    assert error_kind({**FAILED, "content": [text(words)]}) == kind
    assert error_kind({**FINE, "content": words}) is None


def test_the_size_of_a_result_is_its_number_of_characters() -> None:
    """The size of a result is its number of characters, not of bytes; images are not counted."""
    image = {"type": "image", "source": {"type": "base64", "data": "x" * 9000}}
    assert characters("é" * 10) == 10
    assert characters([text("ab"), image, text("ü")]) == 3
    assert characters(None) == characters(5) == characters([7, {"text": 9}]) == 0
