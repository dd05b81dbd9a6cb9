"""What counts as a secret, what does not, and how long a search takes."""

from __future__ import annotations

import base64
import re
import sys
from re._parser import parse  # type: ignore[import-not-found]

import pytest

from agentobs.redaction import find, redact, redact_named, secret_kinds, secret_values
from agentobs.redaction import scanner as scan_module
from agentobs.redaction import secret_context as named_module
from agentobs.redaction.secret_commands import COMMANDS
from agentobs.redaction.secret_context import NAMED, Named
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
def test_secrets_are_redacted(text: bytes, written: bytes) -> None:
    """Keys are redacted by their format, even after an escape sequence, and values by the name of their key.

    A second search finds nothing.
    """
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
def test_lookalikes_are_not_redacted(text: bytes) -> None:
    """Prose, names and placeholders that look like secrets stay unchanged."""
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
    *sorted({kind.anchor for kind in KINDS} | {named.anchor for named in (*NAMED, *COMMANDS)}),
]


@pytest.mark.slow
def test_hostile_text_is_searched_in_linear_time() -> None:
    """In a text that consists only of prefixes of secrets, the number of calls per byte does not grow with the length
    of the text.
    """
    for repeated in PIECES:
        once, twice = (
            _calls((repeated * (size // len(repeated) + 1))[:size]) for size in (2048, 4096)
        )
        assert once < 2048 * 6, repeated
        assert twice < once * 2.5 + 100, repeated


def _calls(text: bytes) -> int:
    """Return how many functions, including built-in ones, are called to search a text."""
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


@pytest.mark.parametrize("separator", [b" ", b"\n", b"x"], ids=repr)
def test_a_long_text_is_searched_in_blocks(
    separator: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets are found wherever a block ends: before, within or after a token, a password or base64 of a secret."""
    token, password = b"ghp_" + b"a1B2c3" * 6, b"DB_PASSWORD=q7Zp3kW9xT"
    encoded = base64.b64encode(b"some text " * 20 + token + b" and more text" * 20)
    monkeypatch.setattr(scan_module, "BLOCK_BYTES", 70_000)
    for secret in (token, password, encoded):
        for before in range(69_000, 70_040, 8):
            text = (b"wind" + separator) * (before // 5) + b" " + secret + b" end"
            assert secret[-10:] not in redact(text), before


def test_every_quantifier_is_bounded() -> None:
    """No built-in pattern contains an unbounded quantifier."""
    cells = [cell.cell_contents for named in NAMED for cell in named.search.__closure__ or ()]
    modules = [
        value
        for each in (secret_kinds, named_module, scan_module, secret_values)
        for value in vars(each).values()
    ]
    sources = [source for named in COMMANDS for source in _sources(named)]
    assert len(sources) > 15
    found = [each for each in (*cells, *modules) if isinstance(each, re.Pattern)]
    found += [re.compile(source) for source in sources]
    patterns = [*(kind.pattern for kind in KINDS), *found]
    assert len(patterns) > 120
    for pattern in patterns:
        if pattern is not scan_module._PLAIN:
            assert "MAXREPEAT" not in str(parse(pattern.pattern)), pattern.pattern


def _sources(named: Named) -> list[bytes]:
    """Return the patterns that a search compiles when it is first needed."""
    variables = zip(named.search.__code__.co_freevars, named.search.__closure__ or (), strict=True)
    return [cell.cell_contents for name, cell in variables if name == "source"]


def test_values_of_secret_names_are_redacted() -> None:
    """The values of keys with the name of a secret are redacted at any depth, in any case, with dashes or underscores.

    Values that cannot be secrets stay unchanged.
    """
    values = {
        "Api-Key": "a",
        "nested": [{"db_PASSWORD": ["b"], "access_token": 5}],
        "max_tokens": 7,
        "use_token": True,
        "credential": None,
    }
    assert redact_named(values) == {
        "Api-Key": "[redacted:argument]",
        "nested": [{"db_PASSWORD": "[redacted:argument]", "access_token": "[redacted:argument]"}],
        "max_tokens": 7,
        "use_token": True,
        "credential": None,
    }
