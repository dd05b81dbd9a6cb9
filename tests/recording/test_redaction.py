"""What is taken for a secret, what is not, and what looking costs."""

from __future__ import annotations

import re
import sys
from re._parser import parse  # type: ignore[import-not-found]

import pytest

from agentobs.redaction import find, redact, redact_named, secret_kinds
from agentobs.redaction import scanner as scan_module
from agentobs.redaction import secret_context as named_module
from agentobs.redaction.secret_context import NAMED
from agentobs.redaction.secret_kinds import KINDS

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


PIECES = [
    b"-----BEGIN PRIVATE KEY-----",
    b"-----BEGIN PRIVATE KEY-----" + b"a" * 3890,
    *(b'secret"', b'"secret": "', b'"password":"' + b"a" * 256, b'"password":"a1b2c3d4', b"%3D"),
    *(
        b"eyJ",
        b"token_",
        b"@",
        b"password" + b" " * 200,
        b"://a:bbb",
        b"cookie: a=bbbbbbbbb",
        b"_a",
    ),
    *(b"aGVsbG8gd29ybGQgaGVsbG8gd29y+", b"AAAA", b"MAAAAAAAAAAAAAAAAAAAAAAA.", b"0123456789:AA"),
    *sorted({kind.anchor for kind in KINDS} | {named.anchor for named in NAMED}),
]


def test_hostile_text_is_looked_through_in_one_go() -> None:
    """Of text made of nothing but beginnings of secrets each byte costs a few calls, however long the text is."""
    for piece in PIECES:
        once, twice = (_calls((piece * (size // len(piece) + 1))[:size]) for size in (2048, 4096))
        assert once < 2048 * 6, piece
        assert twice < once * 2.5 + 100, piece


def _calls(text: bytes) -> int:
    """Return how many functions are called, ours and the interpreter's, to look through a text."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        find(text)
    finally:
        sys.setprofile(None)
    return count


def test_every_quantifier_is_bounded() -> None:
    """No pattern of ours looks further than a secret may be long, from whatever place it starts."""
    looks = [cell.cell_contents for named in NAMED for cell in named.look.__closure__ or ()]
    modules = [
        value for each in (secret_kinds, named_module, scan_module) for value in vars(each).values()
    ]
    found = [each for each in (*looks, *modules) if isinstance(each, re.Pattern)]
    patterns = [*(kind.pattern for kind in KINDS), *found]
    assert len(patterns) > 120
    for pattern in patterns:
        if pattern is not scan_module._PLAIN:
            assert "MAXREPEAT" not in str(parse(pattern.pattern)), pattern.pattern


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
