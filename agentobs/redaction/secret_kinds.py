"""The kinds of secrets that are identified by their form, with the source of each form.

A token consists of an anchor, which is a literal that is rare elsewhere, and text that matches a bounded pattern. The
source documents the form: the provider's own documentation if available, or else the rules of secret scanners.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Before = Literal["any", "word", "name"]
"""Which byte may precede a token. `any`: any byte; `word`: any byte except letters and digits; `name`: any byte except
letters, digits, `_` and `-`.
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One form of a secret."""

    name: str
    """The name of the kind in placeholders."""
    anchor: bytes
    """The literal at the start of the token."""
    pattern: re.Pattern[bytes]
    """Matches the complete token, including its anchor; every quantifier in it is bounded."""
    before: Before = "word"
    source: str = ""
    """The document that describes the form."""


_END = rb"(?![A-Za-z0-9_-])"
_WORD = rb"[A-Za-z0-9_-]"
_BASE64 = rb"(?:[A-Za-z0-9+/]|%2[BFbf])"
"""A character of base64, which may be quoted in a URL."""
_PADDING = rb"(?:=|%3[Dd]){0,2}"
_BOUNDARY = rb"(?:(?<![0-9A-Za-z])|(?<=\\[nrt])|(?<=\[K)|(?<=[\[0-9;]m))"
"""Matches before a token whose start the scanner does not check: the text before it ends in an escape, or in a
character other than a letter or digit.
"""
_MIXED = rb"(?=[A-Za-z_-]{0,128}+[0-9])"
"""Requires a digit in the token, because words that are joined by hyphens are usually prose."""

GITLEAKS = "gitleaks 8, config/gitleaks.toml"
GITHUB = "GitHub docs, supported secret scanning patterns"


def _kind(
    name: str, anchor: str, rest: bytes, source: str = GITLEAKS, before: Before = "word"
) -> Kind:
    literal = anchor.encode()
    return Kind(name, literal, re.compile(re.escape(literal) + rest), before, source)


KINDS: tuple[Kind, ...] = (
    _kind(
        "anthropic_key",
        "sk-ant-",
        _WORD + rb"{16,256}",
        "Anthropic API docs: sk-ant-api03-, -admin01-, -oat01-, -ort01-",
    ),
    _kind("openrouter_key", "sk-or-v1-", rb"[0-9a-f]{64}", "OpenRouter docs, API keys"),
    _kind("langfuse_key", "sk-lf-", rb"[0-9a-f-]{36}", "Langfuse docs, API keys"),
    *(
        _kind(
            "openai_key",
            f"sk-{sort}-",
            _MIXED + _WORD + rb"{20,256}",
            "OpenAI help: project, service account and admin keys",
        )
        for sort in ("proj", "svcacct", "admin", "None")
    ),
    _kind(
        "openai_key",
        "sk-",
        rb"[A-Za-z0-9]{32,64}" + _END,
        "OpenAI help, legacy user keys; DeepSeek and others use the same format",
        "name",
    ),
    _kind("aws_key_id", "AKIA", rb"[A-Z0-9]{16}" + _END, "AWS IAM user guide, unique identifiers"),
    _kind("aws_key_id", "ASIA", rb"[A-Z0-9]{16}" + _END, "AWS IAM user guide, unique identifiers"),
    _kind(
        "aws_bedrock_key",
        "ABSK",
        _BASE64 + rb"{100,269}" + _PADDING,
        "Amazon Bedrock user guide, long-term API keys",
        "name",
    ),
    *(
        _kind(
            "github_token",
            f"gh{sort}_",
            rb"[A-Za-z0-9]{36,255}",
            "GitHub blog, Behind GitHub's new authentication token formats",
            "any",
        )
        for sort in "pousr"
    ),
    _kind("github_token", "github_pat_", rb"[A-Za-z0-9_]{22,255}", GITHUB, "any"),
    *(
        _kind(
            "gitlab_token",
            f"{sort}-",
            _MIXED + rb"[A-Za-z0-9_.-]{20,300}",
            "GitLab docs, token overview: token prefixes",
        )
        for sort in (
            "glpat",
            "gldt",
            "glrt",
            "glcbt",
            "glptt",
            "glft",
            "glimt",
            "glagent",
            "gloas",
            "glsoat",
            "glffct",
        )
    ),
    *(
        _kind(
            "slack_token",
            f"xox{sort}-",
            _MIXED + rb"[A-Za-z0-9-]{20,255}",
            "Slack docs, token types",
        )
        for sort in "abcdeoprs"
    ),
    _kind("slack_token", "xapp-", rb"[0-9]-[A-Za-z0-9-]{20,255}", "Slack docs, app-level tokens"),
    *(
        _kind("stripe_key", f"{sort}_live_", rb"[A-Za-z0-9]{20,247}", "Stripe docs, API keys")
        for sort in ("sk", "rk")
    ),
    *(
        _kind("stripe_key", f"{sort}_test_", rb"[A-Za-z0-9]{20,247}", "Stripe docs, API keys")
        for sort in ("sk", "rk")
    ),
    _kind(
        "webhook_secret",
        "whsec_",
        _BASE64 + rb"{24,64}" + _PADDING,
        "Stripe docs, webhooks; Standard Webhooks",
    ),
    _kind("twilio_key", "SK", rb"[0-9a-f]{32}" + _END, "Twilio docs, API keys", "name"),
    _kind("sendgrid_key", "SG.", _WORD + rb"{22}\." + _WORD + rb"{43}", GITHUB),
    _kind("mailgun_key", "key-", rb"[0-9a-f]{32}" + _END, GITLEAKS),
    _kind(
        "mailchimp_key", "md-", rb"[A-Za-z0-9_-]{22}" + _END, "Mailchimp Transactional docs", "name"
    ),
    _kind("brevo_key", "xkeysib-", rb"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    _kind(
        "npm_token",
        "npm_",
        rb"[A-Za-z0-9]{36}" + _END,
        "GitHub blog, npm's new access token format",
    ),
    _kind("pypi_token", "pypi-", _WORD + rb"{50,512}", "PyPI help, API tokens"),
    _kind("rubygems_key", "rubygems_", rb"[0-9a-f]{48}"),
    _kind("docker_token", "dckr_pat_", _WORD + rb"{27,64}", GITHUB),
    _kind("docker_token", "dckr_oat_", _WORD + rb"{27,64}", GITHUB),
    _kind(
        "huggingface_token",
        "hf_",
        rb"[A-Za-z0-9]{34}" + _END,
        "Hugging Face docs, user access tokens",
        "name",
    ),
    _kind("huggingface_token", "api_org_", rb"[A-Za-z0-9]{34}" + _END),
    _kind("google_key", "AIza", _WORD + rb"{35}" + _END, "Google Cloud docs, API keys", "name"),
    _kind(
        "google_oauth",
        "ya29.",
        _MIXED + rb"[A-Za-z0-9_.-]{20,1024}",
        "Google identity docs, access tokens",
    ),
    _kind("google_oauth", "GOCSPX-", _WORD + rb"{28}" + _END, GITHUB),
    _kind(
        "jwt",
        "eyJ",
        rb"[A-Za-z0-9_-]{10,1024}+\.eyJ[A-Za-z0-9_-]{10,2048}+\.[A-Za-z0-9_-]{10,1024}",
        "RFC 7519",
        "name",
    ),
    *(
        _kind(
            "digitalocean_token", f"do{sort}_v1_", rb"[0-9a-f]{64}", "DigitalOcean docs, API tokens"
        )
        for sort in "opr"
    ),
    _kind("linear_key", "lin_api_", rb"[A-Za-z0-9]{32,64}", GITHUB),
    _kind("linear_key", "lin_oauth_", rb"[A-Za-z0-9]{32,64}", GITHUB),
    _kind("notion_token", "secret_", rb"[A-Za-z0-9]{43}" + _END, GITHUB),
    _kind(
        "notion_token",
        "ntn_",
        rb"[A-Za-z0-9]{40,60}" + _END,
        "Notion docs, changelog of September 2024",
    ),
    _kind("postman_key", "PMAK-", rb"[0-9a-f]{24}-[0-9a-f]{34}", GITHUB),
    *(
        _kind("sentry_token", f"{sort}_", rb"[A-Za-z0-9+/=_%-]{64,512}", "Sentry docs, auth tokens")
        for sort in ("sntrys", "sntryu")
    ),
    *(
        _kind("newrelic_key", f"NR{sort}-", rb"[A-Za-z0-9]{27,42}", "New Relic docs, API keys")
        for sort in ("AK", "II", "AL", "RA")
    ),
    *(
        _kind(
            "grafana_token",
            f"{sort}_",
            rb"(?:[=_]|" + _BASE64 + rb"){32,400}" + _PADDING,
            "Grafana docs, service account tokens",
        )
        for sort in ("glsa", "glc")
    ),
    *(
        _kind("shopify_token", f"shp{sort}_", rb"[0-9a-fA-F]{32}", "Shopify docs, access tokens")
        for sort in ("at", "ca", "pa", "ss")
    ),
    *(
        _kind("square_token", f"sq0{sort}-", _WORD + rb"{22,50}", "Square docs, access tokens")
        for sort in ("atp", "csp", "idp")
    ),
    _kind(
        "databricks_token",
        "dapi",
        rb"[0-9a-f]{32}(?:-[0-9])?" + _END,
        "Databricks docs, personal access tokens",
        "name",
    ),
    _kind("vault_token", "hvs.", _WORD + rb"{24,256}", "HashiCorp Vault docs, tokens"),
    _kind("vault_token", "hvb.", _WORD + rb"{24,300}", "HashiCorp Vault docs, tokens"),
    _kind("terraform_token", "atlasv1.", rb"[A-Za-z0-9_=-]{60,70}"),
    *(
        _kind(
            "doppler_token", f"dp.{sort}.", rb"[A-Za-z0-9.]{40,64}", "Doppler docs, token formats"
        )
        for sort in ("pt", "st", "ct", "sa", "scim", "audit")
    ),
    _kind("pulumi_token", "pul-", rb"[0-9a-f]{40}" + _END),
    _kind("figma_token", "figd_", _MIXED + _WORD + rb"{38,64}", GITHUB),
    _kind("atlassian_token", "ATATT3", rb"[A-Za-z0-9_=-]{60,256}", "Atlassian docs, API tokens"),
    _kind(
        "airtable_token",
        "pat",
        rb"[A-Za-z0-9]{14}\.[0-9a-f]{64}",
        "Airtable docs, personal access tokens",
        "name",
    ),
    *(
        _kind(
            "supabase_key", f"{sort}_", _MIXED + rb"[A-Za-z0-9_]{31,64}", "Supabase docs, API keys"
        )
        for sort in ("sbp", "sb_secret")
    ),
    _kind("groq_key", "gsk_", rb"[A-Za-z0-9]{48,56}", GITHUB),
    _kind("xai_key", "xai-", rb"[A-Za-z0-9]{70,90}", GITHUB),
    _kind("perplexity_key", "pplx-", rb"[A-Za-z0-9]{40,64}", GITHUB),
    _kind("replicate_token", "r8_", rb"[A-Za-z0-9]{37,40}" + _END, GITHUB, "name"),
    *(
        _kind(
            "langsmith_key",
            f"lsv2_{sort}_",
            rb"[0-9a-f]{32}_[0-9a-f]{10}",
            "LangSmith docs, API keys",
        )
        for sort in ("pt", "sk")
    ),
    _kind("tavily_key", "tvly-", _MIXED + _WORD + rb"{28,64}", "Tavily docs"),
    _kind("pinecone_key", "pcsk_", rb"[A-Za-z0-9_]{50,80}", GITHUB),
    _kind("posthog_key", "phx_", rb"[A-Za-z0-9_]{40,64}", "PostHog docs, personal API keys"),
    _kind("planetscale_token", "pscale_tkn_", rb"[A-Za-z0-9_.=-]{32,64}"),
    _kind("planetscale_token", "pscale_pw_", rb"[A-Za-z0-9_.=-]{32,64}"),
    _kind(
        "fly_token", "fm2_", rb"(?:[=,_-]|" + _BASE64 + rb"){60,800}", "Fly.io docs, access tokens"
    ),
    _kind(
        "tailscale_key",
        "tskey-",
        rb"[a-z]{2,12}-[A-Za-z0-9]{8,32}-[A-Za-z0-9]{16,64}",
        "Tailscale docs, key prefixes",
    ),
    _kind("nvidia_key", "nvapi-", _MIXED + _WORD + rb"{40,128}", "NVIDIA NIM docs, API keys"),
    _kind("cerebras_key", "csk-", rb"[a-z0-9]{40,64}" + _END, "Cerebras docs, API keys", "name"),
    _kind("together_key", "tgp_v1_", _WORD + rb"{40,64}", "Together AI docs, API keys"),
    _kind(
        "fireworks_key", "fw_", rb"[A-Za-z0-9]{22,32}" + _END, "Fireworks docs, API keys", "name"
    ),
    _kind("firecrawl_key", "fc-", rb"[0-9a-f]{32}" + _END, "Firecrawl docs, API keys", "name"),
    _kind("elevenlabs_key", "sk_", rb"[0-9a-f]{48}" + _END, "ElevenLabs docs, API keys", "name"),
    _kind("logfire_token", "pylf_v1_", rb"[a-z]{2,8}_[A-Za-z0-9]{40,64}", "Logfire docs, tokens"),
    _kind("wandb_key", "wandb_v1_", rb"[A-Za-z0-9_]{40,128}", "Weights & Biases docs, API keys"),
    _kind("atlassian_token", "ATCTT3", rb"[A-Za-z0-9_=-]{60,256}", "Atlassian docs, API tokens"),
    _kind(
        "bitbucket_token",
        "ATBB",
        rb"[A-Za-z0-9_=-]{28,64}",
        "Bitbucket docs, app passwords",
        "name",
    ),
    _kind("onepassword_token", "ops_", rb"eyJ(?:[_-]|" + _BASE64 + rb"){200,1024}" + _PADDING),
    _kind("heroku_key", "HRKU-", _WORD + rb"{36,64}"),
    _kind("vercel_token", "vcp_", rb"[A-Za-z0-9]{24,64}" + _END, GITHUB),
    _kind("square_token", "EAAA", _MIXED + _WORD + rb"{40,64}" + _END, GITLEAKS, "name"),
    _kind("cargo_token", "cio", rb"[A-Za-z0-9]{32}" + _END, GITHUB, "name"),
    _kind("nuget_key", "oy2", rb"[a-z0-9]{43}" + _END, GITHUB, "name"),
    _kind(
        "age_key",
        "AGE-SECRET-KEY-1",
        rb"[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}",
        "age specification",
    ),
)
"""The tokens that are identified by their form."""

TELEGRAM = re.compile(_BOUNDARY + rb"[0-9]{8,10}(?::|%3[Aa])AA" + _WORD + rb"{33}" + _END)
"""A bot token: the bot's ID, a colon, and 35 characters that start with `AA` (Telegram Bot API, making requests)."""

MAILGUN = re.compile(rb"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}" + _END)
"""A newer Mailgun key, which has no anchor (gitleaks 8)."""

DISCORD = re.compile(
    rb"[MNO]" + _WORD + rb"{23,27}\." + _WORD + rb"{6,7}\." + _WORD + rb"{27,40}" + _END
)
"""A bot token: the bot's ID in base64, which starts with one of three letters, a timestamp, and a signature (Discord
docs, reference).
"""

REFRESH = re.compile(_BOUNDARY + rb"1(?://|%2[Ff]%2[Ff])0" + _WORD + rb"{40,256}")
"""An OAuth refresh token, as a path or in a URL (Google identity docs, refresh tokens)."""
