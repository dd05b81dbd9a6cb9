"""Passwords and keys without a distinctive form are found by the text around them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.provider.anthropic.streams import assemble
from agentobs.recording.vault.stream_secrets import find_in_answer
from agentobs.redaction import anchors, apply, find, redact
from agentobs.redaction.anchors import SHORT, position_search, separate_searches
from tests.recording.assignment_corpus import (
    AROUND,
    KEY_FORMS,
    KEYS,
    PASSWORD_FORMS,
    PASSWORDS,
    assignments,
)
from tests.recording.benign_corpus import corpora
from tests.recording.secret_corpus import Planted
from tests.recording.test_stream_secrets import STREAM, cut, stream

TOTAL = (len(PASSWORD_FORMS) * len(PASSWORDS) + len(KEY_FORMS) * len(KEYS)) * len(AROUND)


def remains(each: Planted, text: str) -> bool:
    """Return whether a value, or half of it, can still be read."""
    size = min(max(6, len(each.secret) // 2), 12)
    return any(each.secret[at : at + size] in text for at in range(len(each.secret) - size + 1))


@pytest.mark.slow
def test_assigned_values_are_found() -> None:
    """At least 95 of 100 passwords and keys are redacted, in complete texts and in streams, and at least 80 of 100 in
    each notation.
    """
    missed = [each for each in assignments(1) if remains(each, redact(each.text.encode()).decode())]
    assert TOTAL == 2904
    assert len(missed) <= TOTAL * 0.05, Counter(each.kind for each in missed)
    by_form = Counter(each.kind.partition(": ")[0] for each in missed)
    assert {form: count for form, count in by_form.items() if count > 7} == {}
    in_streams = list(missed_in_streams(assignments(3)))
    assert len(in_streams) <= TOTAL * 0.05, Counter(each.kind for each in in_streams)


def missed_in_streams(texts: Iterable[Planted]) -> Iterator[Planted]:
    """Yield the texts whose value remains in a stream with deltas of a few characters."""
    chance = random.Random(2)
    for each in texts:
        body = b"".join(stream("text_delta", cut(each.text, chance.randrange(3, 9))))
        written = apply(body, find_in_answer(body))
        if remains(each, assemble(STREAM, written)["content"][0]["text"]):
            yield each


@pytest.mark.parametrize(
    "text",
    [
        b"curl -u admin:password https://example.org",
        b"curl -u $USER:$PASSWORD https://example.org",
        b"mysql -u root -p main",
        b"mkdir -p build/generated && docker run -p 8080:8080 image",
        b"docker login -u app -p $REGISTRY_PASSWORD registry.example.org",
        b"define('DB_PASSWORD', 'password_here')",
        b"define('PASSWORD_FIELD', 'user_password')",
        b"password = getUserPassword(request)",
        b"password: userPasswordField",
        b'{"name": "password", "value": "{{ password }}"}',
        b"machine example.org login app password $PASSWORD",
        b"ENV PASSWORD_HASHER bcrypt-with-parameters",
        b"name: DB_PASSWORD\n  valueFrom:\n    secretKeyRef: database-credentials",
        b'"output_token": "StreamingDistributionList.NextMarker"',
        b'"ClientRequestToken": "a8ca07e4-61ec-4399-99f4-19853801bcd5"',
        b'"SecretId": "MyTestDatabaseSecret"',
        b'"ARN": "arn:aws:secretsmanager:us-west-2:123456789012:secret:MyTestDatabaseSecret-a1b2c3"',
        b"NEXT_TOKEN=eyJvZmZzZXQiOjEwMCwic2l6ZSI6NTB9",
        b"CACHE_KEY=conversation-8f14e45fceea167a5a36dedd4bea2543",
        b"PRIMARY_KEY = order_id_and_customer_id_1",
        b"services:\n  db:\n    ports: ['127.0.0.1:5432:5432']",
        b'auth=("user", "password")',
        b"It was identified by 'somebody else' on Monday.",
        b"authorization: required for all documents2024",
    ],
)
def test_commands_without_secrets_are_not_redacted(text: bytes) -> None:
    """Commands, files and statements without secrets stay unchanged."""
    assert redact(text) == text


@pytest.mark.slow
def test_benign_texts_are_not_redacted() -> None:
    """In code, data, lists of files and prose, at most one place in 100 KB is mistaken for a secret."""
    for name, texts in corpora(2_000_000).items():
        found = [text[each.start - 30 : each.end] for text in texts for each in find(text)]
        assert len(found) <= sum(map(len, texts)) / 100_000, (name, found)


ANCHORS = (b"pass", b"sshpass", b"a", b"aa", b"ssh", b"://", b"sp")


@given(st.lists(st.sampled_from([*ANCHORS, b"s", b"x", b" "]), max_size=30).map(b"".join))
def test_positions_do_not_depend_on_the_search(text: bytes) -> None:
    """The search for all literals at once finds what separate searches find, and each literal in the order of
    positions.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors, "SHORT", 0)
        at_once = list(position_search(ANCHORS)(text))
    separate = list(separate_searches(ANCHORS)(text))
    assert sorted(at_once) == sorted(separate)
    for number in range(len(ANCHORS)):
        assert [at for each, at in at_once if each == number] == [
            at for each, at in separate if each == number
        ]


def test_short_texts_are_searched_without_ahocorasick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that gives up the lock of the interpreter searches only texts of at least `SHORT` bytes."""
    searched: list[int] = []

    class Engine:
        def __init__(self, literals: Sequence[bytes]) -> None:
            pass

        def find_matches_as_indexes(
            self, text: bytes, *, overlapping: bool
        ) -> list[tuple[int, int, int]]:
            searched.append(len(text))
            return [(0, 1, 5)] if overlapping else []

    monkeypatch.setattr(anchors, "BytesAhoCorasick", Engine)
    search = position_search([b"pass"])
    for size in (8, SHORT - 1, SHORT):
        assert list(search(b" pass".ljust(size))) == [(0, 1)]
    assert searched == [SHORT]
