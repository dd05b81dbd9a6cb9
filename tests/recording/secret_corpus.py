"""Secrets that are made up: of each kind, in each context in which agents meet them. None of them was ever a key."""

from __future__ import annotations

import base64
import json
import random
import string
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LOW, UP, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
ALNUM = UP + LOW + DIGITS
WORD = ALNUM + "-_"
HEX = "0123456789abcdef"

Made = Callable[[random.Random], str]


def some(alphabet: str, count: int, prefix: str = "", after: str = "") -> Made:
    """Return what makes `count` characters behind a prefix; a digit and a letter are always among them."""

    def make(chance: random.Random) -> str:
        drawn = [chance.choice(alphabet) for _ in range(count)]
        drawn[1], drawn[-1] = chance.choice("234567" if "2" in alphabet else alphabet), "a"
        if alphabet.isupper() or alphabet == BASE32:
            drawn[-1] = "A"
        return prefix + "".join(drawn) + after

    return make


BASE32 = UP + "234567"


def joined(*parts: Made | str) -> Made:
    """Return what makes each part and puts them together."""
    return lambda chance: "".join(p if isinstance(p, str) else p(chance) for p in parts)


def number(count: int) -> Made:
    """Return what makes a number of so many digits."""
    return lambda chance: "".join(chance.choice(DIGITS) for _ in range(count))


def token_of_json(chance: random.Random) -> str:
    """Return a token of three parts, as web servers sign them."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": str(chance.random()), "iat": 1516239022})
    told = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*told, some(WORD, 43)(chance)])


def private_key(chance: random.Random) -> str:
    """Return a private key in its envelope, of 20 lines."""
    lines = "\n".join(some(ALNUM + "+/", 64)(chance) for _ in range(20))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"


def basic(chance: random.Random) -> str:
    """Return user and password as a header holds them."""
    return base64.b64encode(f"admin:{some(ALNUM, 12)(chance)}".encode()).decode()


TOKENS: dict[str, Made] = {
    "anthropic": some(WORD, 95, "sk-ant-api03-", "AA"),
    "anthropic admin": some(WORD, 95, "sk-ant-admin01-", "AA"),
    "anthropic oauth": some(WORD, 95, "sk-ant-oat01-", "AA"),
    "openai project": some(WORD, 120, "sk-proj-"),
    "openai legacy": some(ALNUM, 48, "sk-"),
    "aws key id": some(BASE32, 16, "AKIA"),
    "github classic": some(ALNUM, 36, "ghp_"),
    "github server": some(ALNUM, 36, "ghs_"),
    "github fine": joined("github_pat_", some(ALNUM, 22), "_", some(ALNUM, 59)),
    "gitlab": some(WORD, 20, "glpat-"),
    "slack bot": joined("xoxb-", number(11), "-", number(11), "-", some(ALNUM, 24)),
    "stripe": some(ALNUM, 24, "sk_live_"),
    "twilio": some(HEX, 32, "SK"),
    "sendgrid": joined("SG.", some(WORD, 22), ".", some(WORD, 43)),
    "mailgun": some(HEX, 32, "key-"),
    "npm": some(ALNUM, 36, "npm_"),
    "pypi": some(WORD, 150, "pypi-AgEIcHlwaS5vcmc"),
    "hugging face": some(ALNUM, 34, "hf_"),
    "google": some(WORD, 35, "AIza"),
    "google oauth": some(WORD, 120, "ya29."),
    "google refresh": some(WORD, 60, "1//0"),
    "jwt": token_of_json,
    "private key": private_key,
    "digitalocean": some(HEX, 64, "dop_v1_"),
    "linear": some(ALNUM, 40, "lin_api_"),
    "notion": some(ALNUM, 43, "ntn_"),
    "postman": joined("PMAK-", some(HEX, 24), "-", some(HEX, 34)),
    "telegram": joined("7", number(9), ":AA", some(WORD, 33)),
    "discord": joined("MT", some(ALNUM, 22), ".", some(ALNUM, 6), ".", some(WORD, 38)),
    "shopify": some(HEX, 32, "shpat_"),
    "databricks": some(HEX, 32, "dapi"),
    "vault": some(WORD, 90, "hvs."),
    "groq": some(ALNUM, 52, "gsk_"),
    "grafana": joined("glsa_", some(ALNUM, 32), "_", some(HEX, 8)),
    "docker": some(WORD, 27, "dckr_pat_"),
    "sentry": some(ALNUM + "+/", 90, "sntrys_eyJpYXQiOjE3M"),
}
"""Secrets that are told by their own form."""

VALUES: dict[str, tuple[str, Made]] = {
    "aws secret key": ("aws_secret_access_key", some(ALNUM + "+/", 40)),
    "aws session": ("AWS_SESSION_TOKEN", some(ALNUM + "+/", 340, "IQoJ")),
    "datadog": ("DD_API_KEY", some(HEX, 32)),
    "twilio auth": ("TWILIO_AUTH_TOKEN", some(HEX, 32)),
    "database": ("DB_PASSWORD", some(ALNUM + "!#", 14)),
    "client secret": ("client_secret", some(WORD, 40)),
    "azure storage": ("AccountKey", some(ALNUM + "+/", 86, after="==")),
}
"""Secrets that only their name tells."""

WHOLE: dict[str, tuple[str, Made]] = {
    "url password": ("postgres://app:{}@db.internal:5432/main", some(ALNUM, 16)),
    "slack webhook": (
        "https://hooks.slack.com/services/T0{}",
        joined(some(UP + DIGITS, 8), "/B", some(UP + DIGITS, 9), "/", some(ALNUM, 24)),
    ),
    "sentry dsn": ("https://{}@o44.ingest.sentry.io/12", some(HEX, 32)),
    "basic": ("Authorization: Basic {}", basic),
    "bearer": ("Proxy-Authorization: Bearer {}", some(WORD, 40)),
    "query key": ("https://api.example.com/v1/x?key={}&page=2", some(WORD, 32)),
    "sas": ("https://x.blob.core.windows.net/c?sv=2024&sig={}%3D&se=1", some(ALNUM, 43)),
    "cookie": ("Set-Cookie: session={}; HttpOnly", some(ALNUM, 40)),
}
"""Secrets that what stands around them tells."""


@dataclass(frozen=True)
class Planted:
    """A text with one secret in it."""

    kind: str
    context: str
    text: str
    secret: str
    """What must not be left of it, in whatever form it stands there."""


Context = Callable[[str, str], str]
CONTEXTS: dict[str, Context] = {
    "JSON": lambda name, value: json.dumps({"type": "text", "text": f"see:\n{value}\nand go on"}),
    "JSON in JSON": lambda name, value: json.dumps(json.dumps({"out": f"a\n{value}\n", name: 1})),
    "environment": lambda name, value: f"HOME=/root\n{name}={value}\nLANG=C.UTF-8\n",
    "YAML": lambda name, value: f"app:\n  {name}: {_indented(value)}\n  debug: true\n",
    "shell": lambda name, value: f"$ export {name}='{value}' && curl -s https://x.example.com",
    "traceback": lambda name, value: f'  File "a.py", line 3\nValueError: bad {name!r}: {value!r}',
    "URL": lambda name, value: f"GET /v1/x?a=1&{name}={urllib.parse.quote(value, safe='')}&b=2",
    "base64": lambda name, value: base64.b64encode(f"[main]\n{name} = {value}\n".encode()).decode(),
}
"""How a secret stands in what agents read and write."""


def _indented(value: str) -> str:
    return "|\n    " + value.replace("\n", "\n    ") if "\n" in value else value


def planted(seed: int = 1) -> Iterator[Planted]:
    """Yield each kind in each context."""
    chance = random.Random(seed)
    for kind, make in TOKENS.items():
        for context, write in CONTEXTS.items():
            value = make(chance)
            yield _planted(kind, context, write("value", value), value)
    for kind, (name, make) in VALUES.items():
        for context, write in CONTEXTS.items():
            value = make(chance)
            text = write(name, value)
            if context in ("JSON", "JSON in JSON", "traceback"):
                given = {"config": {name: value, "region": "eu"}}
                text = {
                    "JSON": json.dumps(given),
                    "JSON in JSON": json.dumps(json.dumps(given)),
                    "traceback": f"KeyError: {given!r}",
                }[context]
            yield _planted(kind, context, text, value)
    for kind, (form, make) in WHOLE.items():
        for context, write in CONTEXTS.items():
            value = make(chance)
            text = form.format(value)
            written = f"GET {text}" if context == "URL" else write("value", text)
            yield _planted(kind, context, written, value)


def _planted(kind: str, context: str, text: str, secret: str) -> Planted:
    if context == "base64":
        return Planted(kind, context, text, text[len(text) // 2 :][:40])
    if context == "URL":
        quoted = urllib.parse.quote(secret, safe="")
        secret = quoted if quoted in text else secret
    if "\n" in secret:
        secret = secret.split("\n")[3]
    return Planted(kind, context, text, secret)
