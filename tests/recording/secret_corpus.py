"""Invented secrets of each kind, in each context in which an agent may encounter them.

None of them was ever a real key.
"""

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


def random_text(alphabet: str, count: int, prefix: str = "", after: str = "") -> Made:
    """Return a function that makes `count` random characters after a prefix, with at least one digit and one letter."""

    def make(chance: random.Random) -> str:
        drawn = [chance.choice(alphabet) for _ in range(count)]
        drawn[1], drawn[-1] = chance.choice("234567" if "2" in alphabet else alphabet), "a"
        if alphabet.isupper() or alphabet == BASE32:
            drawn[-1] = "A"
        return prefix + "".join(drawn) + after

    return make


BASE32 = UP + "234567"


def joined(*parts: Made | str) -> Made:
    """Return a function that makes each part and joins the parts."""
    return lambda chance: "".join(p if isinstance(p, str) else p(chance) for p in parts)


def number(count: int) -> Made:
    """Return a function that makes a number with this many digits."""
    return lambda chance: "".join(chance.choice(DIGITS) for _ in range(count))


def json_web_token(chance: random.Random) -> str:
    """Return a token of three parts, like a JSON web token."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": str(chance.random()), "iat": 1516239022})
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*encoded, random_text(WORD, 43)(chance)])


def private_key(chance: random.Random) -> str:
    """Return a private key of 20 lines in PEM format."""
    lines = "\n".join(random_text(ALNUM + "+/", 64)(chance) for _ in range(20))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"


def basic_credentials(chance: random.Random) -> str:
    """Return user and password as in an `Authorization` header."""
    return base64.b64encode(f"admin:{random_text(ALNUM, 12)(chance)}".encode()).decode()


TOKENS: dict[str, Made] = {
    "anthropic": random_text(WORD, 95, "sk-ant-api03-", "AA"),
    "anthropic admin": random_text(WORD, 95, "sk-ant-admin01-", "AA"),
    "anthropic oauth": random_text(WORD, 95, "sk-ant-oat01-", "AA"),
    "openai project": random_text(WORD, 120, "sk-proj-"),
    "openai legacy": random_text(ALNUM, 48, "sk-"),
    "aws key id": random_text(BASE32, 16, "AKIA"),
    "github classic": random_text(ALNUM, 36, "ghp_"),
    "github server": random_text(ALNUM, 36, "ghs_"),
    "github fine": joined("github_pat_", random_text(ALNUM, 22), "_", random_text(ALNUM, 59)),
    "gitlab": random_text(WORD, 20, "glpat-"),
    "slack bot": joined("xoxb-", number(11), "-", number(11), "-", random_text(ALNUM, 24)),
    "stripe": random_text(ALNUM, 24, "sk_live_"),
    "twilio": random_text(HEX, 32, "SK"),
    "sendgrid": joined("SG.", random_text(WORD, 22), ".", random_text(WORD, 43)),
    "mailgun": random_text(HEX, 32, "key-"),
    "npm": random_text(ALNUM, 36, "npm_"),
    "pypi": random_text(WORD, 150, "pypi-AgEIcHlwaS5vcmc"),
    "hugging face": random_text(ALNUM, 34, "hf_"),
    "google": random_text(WORD, 35, "AIza"),
    "google oauth": random_text(WORD, 120, "ya29."),
    "google refresh": random_text(WORD, 60, "1//0"),
    "jwt": json_web_token,
    "private key": private_key,
    "digitalocean": random_text(HEX, 64, "dop_v1_"),
    "linear": random_text(ALNUM, 40, "lin_api_"),
    "notion": random_text(ALNUM, 43, "ntn_"),
    "postman": joined("PMAK-", random_text(HEX, 24), "-", random_text(HEX, 34)),
    "telegram": joined("7", number(9), ":AA", random_text(WORD, 33)),
    "discord": joined(
        "MT", random_text(ALNUM, 22), ".", random_text(ALNUM, 6), ".", random_text(WORD, 38)
    ),
    "shopify": random_text(HEX, 32, "shpat_"),
    "databricks": random_text(HEX, 32, "dapi"),
    "vault": random_text(WORD, 90, "hvs."),
    "groq": random_text(ALNUM, 52, "gsk_"),
    "grafana": joined("glsa_", random_text(ALNUM, 32), "_", random_text(HEX, 8)),
    "docker": random_text(WORD, 27, "dckr_pat_"),
    "sentry": random_text(ALNUM + "+/", 90, "sntrys_eyJpYXQiOjE3M"),
    "bedrock": random_text(ALNUM + "+/", 128, "ABSK"),
    "webhook": random_text(ALNUM + "+/", 32, "whsec_"),
    "fly": random_text(ALNUM + "+/", 200, "fm2_"),
    "grafana cloud": random_text(ALNUM + "+/", 80, "glc_"),
    "nvidia": random_text(WORD, 64, "nvapi-"),
    "cerebras": random_text(LOW + DIGITS, 48, "csk-"),
    "together": random_text(WORD, 43, "tgp_v1_"),
    "fireworks": random_text(ALNUM, 24, "fw_"),
    "firecrawl": random_text(HEX, 32, "fc-"),
    "elevenlabs": random_text(HEX, 48, "sk_"),
    "logfire": random_text(ALNUM, 44, "pylf_v1_us_"),
    "wandb": random_text(ALNUM + "_", 70, "wandb_v1_"),
    "atlassian app": random_text(WORD, 170, "ATCTT3xFfGN0"),
    "bitbucket": random_text(ALNUM, 32, "ATBB"),
    "1password": random_text(ALNUM + "+/", 600, "ops_eyJ"),
    "heroku": random_text(WORD, 58, "HRKU-AA"),
    "vercel": random_text(ALNUM, 56, "vcp_"),
    "square": random_text(WORD, 60, "EAAA"),
    "cargo": random_text(ALNUM, 32, "cio"),
    "nuget": random_text(LOW + DIGITS, 43, "oy2"),
    "adafruit": random_text(ALNUM, 28, "aio_"),
    "alibaba key id": random_text(ALNUM, 20, "LTAI"),
    "artifactory": random_text(ALNUM, 69, "AKCp"),
    "azure": joined(random_text(ALNUM, 3), "8Q~", random_text(ALNUM + "~.-_", 34)),
    "buildkite": random_text(HEX, 40, "bkua_"),
    "circleci": joined("CCIPAT_", random_text(ALNUM, 22), "_", random_text(HEX, 40)),
    "clojars": random_text(ALNUM, 60, "CLOJARS_"),
    "contentful": random_text(WORD, 43, "CFPAT-"),
    "dropbox": random_text(WORD, 135, "sl."),
    "duffel": random_text(WORD, 43, "duffel_live_"),
    "dynatrace": joined("dt0c01.", random_text(BASE32, 24), ".", random_text(UP + DIGITS, 63), "A"),
    "e2b": random_text(HEX, 40, "e2b_"),
    "easypost": random_text(ALNUM, 54, "EZAK"),
    "figma oauth": random_text(WORD, 40, "figo_"),
    "flutterwave": random_text(HEX, 32, "FLWSECK-"),
    "gitlab runner": random_text(WORD, 20, "GR1348941"),
    "harness": joined(
        "pat.", random_text(WORD, 22), ".", random_text(HEX, 24), ".", random_text(ALNUM, 20)
    ),
    "infracost": random_text(ALNUM, 32, "ico-"),
    "jina": random_text(ALNUM, 28, "jina_" + "0123456789abcdef" * 2),
    "lob": random_text(HEX, 35, "live_"),
    "mapbox": joined("sk.eyJ", random_text(WORD, 60), ".", random_text(WORD, 22)),
    "netlify": random_text(ALNUM, 36, "nfp_"),
    "octopus": random_text(BASE32, 26, "API-"),
    "openshift": random_text(WORD, 43, "sha256~"),
    "plaid": joined(
        "access-production-",
        random_text(HEX, 8),
        *("-", random_text(HEX, 4)) * 3,
        "-",
        random_text(HEX, 12),
    ),
    "planetscale": random_text(WORD, 43, "pscale_tkn_"),
    "prefect": random_text(ALNUM, 36, "pnu_"),
    "razorpay": random_text(ALNUM, 14, "rzp_live_"),
    "readme": random_text(LOW + DIGITS, 70, "rdme_"),
    "render": random_text(ALNUM, 32, "rnd_"),
    "shippo": random_text(HEX, 40, "shippo_live_"),
    "snyk": random_text(WORD, 60, "snyk_uat.0123abcd."),
    "sonar": random_text(HEX, 40, "squ_"),
    "sourcegraph": random_text(HEX, 40, "sgp_"),
    "typeform": joined("tfp_", random_text(WORD, 43), "_", random_text(ALNUM, 12)),
    "yandex": random_text(WORD, 36, "AQVN"),
    "age": random_text("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58, "AGE-SECRET-KEY-1"),
    "airtable": joined("pat", random_text(ALNUM, 14), ".", random_text(HEX, 64)),
    "brevo": joined("xkeysib-", random_text(HEX, 64), "-", random_text(ALNUM, 16)),
    "doppler": random_text(ALNUM, 43, "dp.pt."),
    "langsmith": joined("lsv2_pt_", random_text(HEX, 32), "_", random_text(HEX, 10)),
    "newrelic": random_text(ALNUM, 27, "NRAK-"),
    "openrouter": random_text(HEX, 64, "sk-or-v1-"),
    "perplexity": random_text(ALNUM, 48, "pplx-"),
    "pinecone": random_text(ALNUM, 70, "pcsk_"),
    "posthog": random_text(ALNUM, 43, "phx_"),
    "pulumi": random_text(HEX, 40, "pul-"),
    "replicate": random_text(ALNUM, 37, "r8_"),
    "rubygems": random_text(HEX, 48, "rubygems_"),
    "supabase": random_text(HEX, 40, "sbp_"),
    "tailscale": joined("tskey-auth-", random_text(ALNUM, 17), "-", random_text(ALNUM, 32)),
    "terraform": random_text(ALNUM, 67, "atlasv1."),
    "xai": random_text(ALNUM, 80, "xai-"),
}
"""Secrets that are recognized by their own format."""

VALUES: dict[str, tuple[str, Made]] = {
    "aws secret key": ("aws_secret_access_key", random_text(ALNUM + "+/", 40)),
    "aws session": ("AWS_SESSION_TOKEN", random_text(ALNUM + "+/", 340, "IQoJ")),
    "datadog": ("DD_API_KEY", random_text(HEX, 32)),
    "twilio auth": ("TWILIO_AUTH_TOKEN", random_text(HEX, 32)),
    "database": ("DB_PASSWORD", random_text(ALNUM + "!#", 14)),
    "client secret": ("client_secret", random_text(WORD, 40)),
    "azure storage": ("AccountKey", random_text(ALNUM + "+/", 86, after="==")),
}
"""Secrets that are recognized only by the name of their variable or field."""

WHOLE: dict[str, tuple[str, Made]] = {
    "url password": ("postgres://app:{}@db.internal:5432/main", random_text(ALNUM, 16)),
    "slack webhook": (
        "https://hooks.slack.com/services/T0{}",
        joined(
            random_text(UP + DIGITS, 8),
            "/B",
            random_text(UP + DIGITS, 9),
            "/",
            random_text(ALNUM, 24),
        ),
    ),
    "sentry dsn": ("https://{}@o44.ingest.sentry.io/12", random_text(HEX, 32)),
    "basic": ("Authorization: Basic {}", basic_credentials),
    "bearer": ("Proxy-Authorization: Bearer {}", random_text(WORD, 40)),
    "query key": ("https://api.example.com/v1/x?key={}&page=2", random_text(WORD, 32)),
    "sas": ("https://x.blob.core.windows.net/c?sv=2024&sig={}%3D&se=1", random_text(ALNUM, 43)),
    "cookie": ("Set-Cookie: session={}; HttpOnly", random_text(ALNUM, 40)),
}
"""Secrets that are recognized by the text around them."""


@dataclass(frozen=True)
class Planted:
    """A text that contains one secret."""

    kind: str
    context: str
    text: str
    secret: str
    """The characters of the secret as they appear in the text; none of them may remain."""


Context = Callable[[str, str], str]
CONTEXTS: dict[str, Context] = {
    "JSON": lambda name, value: json.dumps({"type": "text", "text": f"see:\n{value}\nand go on"}),
    "JSON in JSON": lambda name, value: json.dumps(json.dumps({"out": f"a\n{value}\n", name: 1})),
    "environment": lambda name, value: f"HOME=/root\n{name}={value}\nLANG=C.UTF-8\n",
    "YAML": lambda name, value: f"app:\n  {name}: {_indented(value)}\n  debug: true\n",
    "shell": lambda name, value: f"$ export {name}='{value}' && curl -s https://x.example.com",
    "traceback": lambda name, value: f'  File "a.py", line 3\nValueError: bad {name!r}: {value!r}',
    "URL": lambda name, value: f"GET /v1/x?a=1&{name}={urllib.parse.quote(value, safe='')}&b=2",
    "colored": lambda name, value: f"\x1b[35mapp.env\x1b[0m:\x1b[32m{name}={value}\x1b[0m\n",
    "grep": lambda name, value: f"app.env:{name}=\x1b[01;31m\x1b[K{value}\x1b[m\x1b[K\n",
    "base64": lambda name, value: base64.b64encode(f"[main]\n{name} = {value}\n".encode()).decode(),
}
"""How a secret appears in texts that agents read and write."""


def _indented(value: str) -> str:
    return "|\n    " + value.replace("\n", "\n    ") if "\n" in value else value


def planted(seed: int = 1) -> Iterator[Planted]:
    """Yield each kind of secret in each context."""
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
                config = {"config": {name: value, "region": "eu"}}
                text = {
                    "JSON": json.dumps(config),
                    "JSON in JSON": json.dumps(json.dumps(config)),
                    "traceback": f"KeyError: {config!r}",
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
