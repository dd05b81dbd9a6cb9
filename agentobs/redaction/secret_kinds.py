"""The kinds of secrets that are identified by their form, with the source of each form.

A token consists of an anchor, which is a literal that is rare elsewhere, and text that matches a bounded pattern. The
source documents the form: the provider's own documentation if available, or else the rules of secret scanners.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Before = Literal["any", "word", "name"]
"""Which byte may precede a token. `any`: any byte; `word`: any byte except letters and digits; `name`: any byte except
letters, digits, `_` and `-`.
"""


@dataclass(frozen=True)
class Kind:
    """One form of a secret."""

    name: str
    """The name of the kind in placeholders."""
    anchor: bytes
    """The literal at the start of the token."""
    rest: bytes
    """A pattern for the token after its anchor; every quantifier in it is bounded."""
    before: Before = "word"
    source: str = ""
    """The document that describes the form."""

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """The pattern of the complete token. It is compiled at its first use, because compiling all of them takes 30
        ms.
        """
        return re.compile(re.escape(self.anchor) + self.rest)

    @cached_property
    def is_alphanumeric(self) -> bool:
        """Whether at least `ALPHANUMERIC` letters and digits follow the anchor."""
        counted = _COUNTED.match(self.rest)
        return bool(counted and int(counted[1]) >= ALPHANUMERIC)


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

ALPHANUMERIC = 12
"""If a pattern requires at least this many letters and digits, they are checked before it is matched."""
_COUNTED = re.compile(rb"\[(?:A-Z|a-z|0-9|a-f|A-F){1,5}\]\{([0-9]{1,4})")
"""Matches the start of a pattern that begins with a number of letters and digits."""

GITLEAKS = "gitleaks 8, config/gitleaks.toml"
GITHUB = "GitHub docs, supported secret scanning patterns"


def _kind(
    name: str, anchor: str, rest: bytes, source: str = GITLEAKS, before: Before = "word"
) -> Kind:
    return Kind(name, anchor.encode(), rest, before, source)


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
    _kind("adafruit_key", "aio_", rb"[A-Za-z0-9]{28}" + _END, GITHUB),
    _kind("adobe_secret", "p8e-", rb"[A-Za-z0-9]{32}" + _END, GITLEAKS),
    _kind("alibaba_key_id", "LTAI", rb"[A-Za-z0-9]{17,21}" + _END, GITLEAKS, "name"),
    _kind("artifactory_token", "AKCp", rb"[A-Za-z0-9]{69}" + _END, GITLEAKS, "name"),
    _kind("artifactory_token", "cmVmd", rb"[A-Za-z0-9]{59}" + _END, GITLEAKS, "name"),
    _kind("buildkite_token", "bkua_", rb"[0-9a-f]{40}" + _END, "Buildkite docs, API access tokens"),
    *(
        _kind("circleci_token", anchor, rb"[A-Za-z0-9]{22}_[0-9a-f]{40}", GITHUB)
        for anchor in ("CCIPAT_", "CCIPRJ_")
    ),
    _kind("clojars_token", "CLOJARS_", rb"[A-Za-z0-9]{60}" + _END, GITLEAKS),
    _kind("cloudflare_origin_key", "v1.0-", rb"[0-9a-f]{24}-[0-9a-f]{146}", GITLEAKS),
    _kind("contentful_token", "CFPAT-", _WORD + rb"{40,64}", GITHUB),
    _kind(
        "defined_networking_token", "dnkey-", rb"[A-Za-z0-9=_-]{26}-[A-Za-z0-9=_-]{52}", GITLEAKS
    ),
    _kind("dropbox_token", "sl.", _MIXED + _WORD + rb"{130,160}" + _END, GITLEAKS, "name"),
    *(
        _kind("duffel_token", anchor, rb"[A-Za-z0-9_=-]{43}", GITLEAKS)
        for anchor in ("duffel_test_", "duffel_live_")
    ),
    *(
        _kind(
            "dynatrace_token",
            anchor,
            rb"[A-Z0-9]{24}\.[A-Z0-9]{64}",
            "Dynatrace docs, token format",
        )
        for anchor in ("dt0c01.", "dt0s01.")
    ),
    _kind("e2b_key", "e2b_", rb"[0-9a-f]{40}" + _END, "E2B docs, API keys"),
    *(
        _kind("easypost_key", anchor, rb"[A-Za-z0-9]{54}" + _END, GITLEAKS, "name")
        for anchor in ("EZAK", "EZTK")
    ),
    *(
        _kind("flutterwave_key", anchor, rb"[A-Za-z0-9]{12,32}", GITLEAKS)
        for anchor in ("FLWSECK_TEST-", "FLWSECK-")
    ),
    _kind("frameio_token", "fio-u-", rb"[A-Za-z0-9_=-]{64}", GITLEAKS),
    *(
        _kind("gitlab_token", anchor, rest, "GitLab docs, token overview: token prefixes")
        for anchor, rest in (
            ("GR1348941", _WORD + rb"{20,64}"),
            ("glpat-", rb"[A-Za-z0-9_.-]{20,300}"),
        )
    ),
    _kind("grafana_token", "eyJrIjoi", rb"[A-Za-z0-9]{70,400}" + _PADDING, GITLEAKS, "name"),
    *(
        _kind(
            "harness_token",
            anchor,
            _WORD + rb"{22}\.[0-9a-f]{24}\.[A-Za-z0-9]{20}",
            GITLEAKS,
            "name",
        )
        for anchor in ("pat.", "sat.")
    ),
    _kind("infracost_key", "ico-", rb"[A-Za-z0-9]{32}" + _END, GITLEAKS, "name"),
    *(
        _kind("intra42_secret", anchor, rb"[0-9a-f]{64}", GITLEAKS)
        for anchor in ("s-s4t2ud-", "s-s4t2af-")
    ),
    *(
        _kind("inngest_key", anchor, rb"[0-9a-f]{32,64}", "Inngest docs, signing keys")
        for anchor in ("signkey-prod-", "signkey-test-")
    ),
    _kind("jina_key", "jina_", rb"[0-9a-f]{32}[A-Za-z0-9_-]{16,40}", "Jina AI docs, API keys"),
    *(
        _kind("lob_key", anchor, rb"[0-9a-f]{35}" + _END, GITLEAKS, "name")
        for anchor in ("live_", "test_")
    ),
    *(
        _kind(
            "mapbox_token",
            anchor,
            _WORD + rb"{40,160}\.[A-Za-z0-9_-]{20,24}",
            "Mapbox docs, access tokens",
        )
        for anchor in ("sk.eyJ", "tk.eyJ")
    ),
    *(
        _kind("netlify_token", anchor, rb"[A-Za-z0-9]{36}" + _END, GITHUB)
        for anchor in ("nfp_", "nfo_", "nfc_")
    ),
    *(_kind("newrelic_key", anchor, rb"[0-9a-f]{19}", GITLEAKS) for anchor in ("NRJS-", "NRSP-")),
    _kind("openai_key", "sess-", rb"[A-Za-z0-9]{40}" + _END, GITHUB, "name"),
    _kind("octopus_key", "API-", rb"[A-Z0-9]{26}" + _END, GITLEAKS, "name"),
    _kind("openshift_token", "sha256~", _WORD + rb"{43}" + _END, GITLEAKS),
    *(
        _kind("plaid_token", anchor, rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", GITLEAKS)
        for anchor in ("access-sandbox-", "access-development-", "access-production-")
    ),
    _kind("planetscale_token", "pscale_oauth_", rb"[A-Za-z0-9_.=-]{32,64}", GITLEAKS),
    *(
        _kind("prefect_key", anchor, rb"[A-Za-z0-9]{36}" + _END, GITLEAKS)
        for anchor in ("pnu_", "pnb_")
    ),
    *(
        _kind("razorpay_key", anchor, rb"[A-Za-z0-9]{14}" + _END, "Razorpay docs, API keys")
        for anchor in ("rzp_live_", "rzp_test_")
    ),
    _kind("readme_key", "rdme_", rb"[a-z0-9]{70}" + _END, GITLEAKS),
    _kind("render_key", "rnd_", rb"[A-Za-z0-9]{28,40}" + _END, GITHUB, "name"),
    _kind("runpod_key", "rpa_", rb"[A-Z0-9]{40,64}" + _END, "RunPod docs, API keys", "name"),
    _kind("scalingo_token", "tk-us-", _WORD + rb"{48}" + _END, GITLEAKS),
    _kind("sendinblue_key", "xsmtpsib-", rb"[0-9a-f]{64}-[A-Za-z0-9]{16}", "Brevo docs, SMTP keys"),
    *(
        _kind("settlemint_token", anchor, rb"[A-Za-z0-9]{16}" + _END, GITLEAKS)
        for anchor in ("sm_aat_", "sm_pat_", "sm_sat_")
    ),
    *(
        _kind("shippo_token", anchor, rb"[0-9a-f]{40}" + _END, "Shippo docs, API tokens")
        for anchor in ("shippo_live_", "shippo_test_")
    ),
    *(
        _kind("slack_token", anchor, rb"[0-9]-[A-Za-z0-9]{140,180}", GITLEAKS)
        for anchor in ("xoxe.xoxb-", "xoxe.xoxp-")
    ),
    *(
        _kind(
            "snyk_token", anchor, rb"[0-9a-f]{8}\.[A-Za-z0-9_.-]{30,1000}", "Snyk docs, API tokens"
        )
        for anchor in ("snyk_uat.", "snyk_sat.")
    ),
    *(
        _kind("sonar_token", anchor, rb"[0-9a-f]{40}" + _END, "SonarQube docs, tokens")
        for anchor in ("squ_", "sqp_", "sqa_")
    ),
    _kind(
        "sourcegraph_token",
        "sgp_",
        rb"(?:[0-9a-f]{16}_|local_)?[0-9a-f]{40}" + _END,
        "Sourcegraph docs, access tokens",
    ),
    *(
        _kind("stripe_key", anchor, rb"[A-Za-z0-9]{10,99}", GITLEAKS)
        for anchor in ("rk_prod_", "sk_prod_")
    ),
    _kind(
        "typeform_token",
        "tfp_",
        _WORD + rb"{43}_[A-Za-z0-9]{10,16}",
        "Typeform docs, personal access tokens",
    ),
    _kind("upstage_key", "up_", rb"[A-Za-z0-9]{29}" + _END, "Upstage docs, API keys", "name"),
    _kind("unkey_key", "unkey_", rb"[A-Za-z0-9]{20,32}" + _END, GITHUB),
    _kind("vault_token", "hvr.", _WORD + rb"{90,300}", "HashiCorp Vault docs, tokens"),
    _kind("yandex_key", "AQVN", _WORD + rb"{35,38}" + _END, GITLEAKS, "name"),
    _kind("yandex_key", "YCA", _WORD + rb"{38}" + _END, GITLEAKS, "name"),
    _kind("anyscale_key", "esecret_", rb"[a-z0-9]{26}" + _END, "Anyscale docs, API keys"),
    _kind(
        "airtable_token",
        "oaa",
        rb"[A-Za-z0-9]{14}\.v1\.[A-Za-z0-9_-]{32,400}",
        "Airtable docs, OAuth tokens",
        "name",
    ),
    _kind("tencent_key_id", "AKID", rb"[A-Za-z0-9]{32}" + _END, GITHUB, "name"),
    _kind(
        "mongodb_key", "mdb_sa_sk_", _WORD + rb"{40}" + _END, "MongoDB Atlas docs, service accounts"
    ),
    _kind("cloudsmith_key", "ctp_", rb"[A-Za-z0-9]{36,64}" + _END, GITHUB, "name"),
    *(
        _kind("figma_token", anchor, _MIXED + _WORD + rb"{38,64}", GITHUB)
        for anchor in ("figo_", "figu_", "figr_")
    ),
    _kind("slack_token", "xwfp-", rb"[0-9]-[A-Za-z0-9-]{20,255}", "Slack docs, token types"),
    _kind(
        "aws_bedrock_key",
        "bedrock-api-key-",
        _BASE64 + rb"{100,2000}" + _PADDING,
        "Amazon Bedrock user guide, short-term API keys",
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
