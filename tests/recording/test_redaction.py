"""What is taken for a secret, what is not, and what looking costs."""

from __future__ import annotations

import time

import pytest

from agentobs.redaction import find, redact, redact_named

PEM = (
    b"-----BEGIN RSA PRIVATE KEY-----\\nProc-Type: 4,ENCRYPTED\\n%b\\n-----END RSA PRIVATE KEY-----"
)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (b"(sk-ant-api03-abcdefghijklmnop)", b"([redacted:anthropic_key])"),
        (rb'"line\nsk-ant-api03-abcdefghijklmnop"', rb'"line\n[redacted:anthropic_key]"'),
        (rb'"\u0020AKIAABCDEFGHIJKLMNOP"', rb'"\u0020[redacted:aws_key_id]"'),
        (b"/v1/x%3Dsk-ant-abcdefghijklmnopq", b"/v1/x%3D[redacted:anthropic_key]"),
        (b"sk-svcacct-a1B2c3D4e5F6g7H8i9J0", b"[redacted:openai_key]"),
        (b"sk-admin-a1B2c3D4e5F6g7H8i9J0", b"[redacted:openai_key]"),
        (b"Bearer a1b2c3d4e5f6g7h8i9j0k1", b"[redacted:bearer_token]"),
        (b"Bearer aBcdefghijklmnopqrstuvw", b"[redacted:bearer_token]"),
        (b'{"api_key": "correct-horse-battery"}', b'{"api_key": "[redacted:named_secret]"}'),
        (
            rb"{\"client_secret\":\"abcdefghijkl\"}",
            rb"{\"client_secret\":\"[redacted:named_secret]\"}",
        ),
        (PEM % (b"MIIE" * 300), b"[redacted:private_key]"),
    ],
)
def test_secrets_are_taken_out(text: bytes, written: bytes) -> None:
    """Keys by their form, after an escape too, and values by the name of their key; a second look finds nothing."""
    assert redact(text) == written
    assert find(written) == []


@pytest.mark.parametrize(
    "text",
    [
        b"task-ant-abcdefghijklmnopqrst",
        b"Bearer authentication-is-required",
        b'class="sk-admin-dashboard-navigation-bar"',
        b'{"password": {"type": "string"}}',
        b'{"password": "too short"}',
        b'{"password": "${DATABASE_PASSWORD}", "secret": "<your secret here>"}',
        b'{"max_tokens": 1024, "secret": "a sentence with blanks in it"}',
    ],
)
def test_what_only_looks_like_one_stays(text: bytes) -> None:
    """Prose, names and placeholders are kept as they are."""
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        b"-----BEGIN PRIVATE KEY-----",
        b"-----BEGIN PRIVATE KEY-----" + b"a" * 3890,
        *(b"sk-ant-", b"sk-proj-", b"Bearer ", b"Bearer a", b"AKIA", b"AIza", b"hf_", b"xoxb-"),
        *(b'secret"', b'"secret": "', b'"password":"' + b"a" * 256, b"github_pat_", b"%3D", b"sk-"),
    ],
)
def test_hostile_text_costs_little_more_than_plain(piece: bytes) -> None:
    """Text made of nothing but beginnings of secrets costs less than ten times what prose costs."""
    prose = b"Once upon a time there was a plain sentence, and nothing in it. " * 2000
    hostile = (piece * (len(prose) // len(piece) + 1))[: len(prose)]
    assert _cost_ns(hostile) < 10 * _cost_ns(prose)


def _cost_ns(text: bytes) -> int:
    costs = []
    for _ in range(7):
        before = time.thread_time_ns()
        find(text)
        costs.append(time.thread_time_ns() - before)
    return min(costs)


def test_values_with_the_name_of_a_secret() -> None:
    """At any depth, whatever the case and the dashes; what cannot be a secret stays."""
    given = {
        "Api-Key": "a",
        "nested": [{"db_PASSWORD": ["b"], "access_token": 5}],
        "max_tokens": 7,
        "use_token": True,
        "credential": None,
    }
    assert redact_named(given) == {
        "Api-Key": "[redacted:argument]",
        "nested": [{"db_PASSWORD": "[redacted:argument]", "access_token": "[redacted:argument]"}],
        "max_tokens": 7,
        "use_token": True,
        "credential": None,
    }
