"""A generated corpus: the share of secrets that is found, and the share of benign text that is mistaken for secrets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentobs.provider.anthropic.streams import assemble
from agentobs.recording.vault.stream_secrets import find_in_answer, find_in_stream
from agentobs.redaction import apply, disjoint, find, redact
from tests.recording.secret_corpus import CONTEXTS, TOKENS, VALUES, WHOLE, Planted, planted
from tests.recording.test_stream_secrets import STREAM, cut, stream

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_planted_secrets_are_found() -> None:
    """At least 99 of 100 planted secrets are redacted, in complete texts and in streams: 124 kinds in 10 contexts."""
    missed = [*_missed_in_texts(), *_missed_in_streams()]
    total = 2 * len(TOKENS | VALUES | WHOLE) * len(CONTEXTS)
    assert len(TOKENS | VALUES | WHOLE) == 124
    assert total == 2480
    assert len(missed) <= total // 100, [(each.kind, each.context) for each in missed]


def _missed_in_texts() -> Iterator[Planted]:
    """Yield secrets that remain in complete texts."""
    for each in planted():
        assert each.secret in each.text
        if _remains(each, redact(each.text.encode()).decode()):
            yield each


def _missed_in_streams() -> Iterator[Planted]:
    """Yield secrets that remain in streams with deltas of a few characters."""
    chance = random.Random(2)
    for each in planted(seed=3):
        body = b"".join(stream("text_delta", cut(each.text, chance.randrange(3, 9))))
        written = apply(body, find_in_answer(body))
        remaining = assemble(STREAM, written)["content"][0]["text"]
        if _remains(each, remaining):
            yield each


@pytest.mark.slow
def test_a_stream_is_searched_like_its_complete_text() -> None:
    """The search in the distinct parts of a stream misses nothing that the search in all of its bytes finds."""
    chance = random.Random(4)
    texts = list(planted(seed=7))[::2]
    for each in texts:
        for size in (chance.randrange(3, 9), 40, len(each.text)):
            body = b"".join(stream("text_delta", cut(each.text, size)))
            assert find_in_answer(body) == disjoint(find_in_stream(body) + find(body)), each
    assert len(texts) == len(TOKENS | VALUES | WHOLE) * len(CONTEXTS) // 2


def _remains(each: Planted, text: str) -> bool:
    """Return whether a secret, or 12 characters of a long one, can still be read."""
    if len(each.secret) < 24:
        return each.secret in text
    return any(each.secret[at : at + 12] in text for at in range(len(each.secret) - 11))


def test_redaction_keeps_the_rest_of_the_text() -> None:
    """Redaction keeps the text around a secret: redacted JSON is still JSON, and other texts keep their lines."""
    for each in planted(seed=5):
        written = redact(each.text.encode()).decode()
        if each.context in ("JSON", "JSON in JSON"):
            assert type(json.loads(written)) is type(json.loads(each.text)), each
        elif each.context == "environment" and each.kind != "private key":
            assert len(written.split("\n")) == len(each.text.split("\n")), each


def test_benign_text_is_not_redacted() -> None:
    """In the code and the documents of agentobs, less than one place in 100 KB is mistaken for a secret."""
    texts = [path.read_bytes() for path in _benign()]
    found = [text[each.start : each.end] for text in texts for each in find(text)]
    assert len(found) <= sum(map(len, texts)) / 100_000, found
    assert sum(map(len, texts)) > 1_000_000


def _benign() -> list[Path]:
    code = [*ROOT.glob("agentobs/**/*.py"), *ROOT.glob("replay/**/*.py"), *ROOT.glob("docs/*.md")]
    return [path for path in code if "redaction" not in path.parts and path.name != "redaction.md"]
