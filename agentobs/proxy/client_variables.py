"""The environment variables with which clients are directed to another base URL, as one table.

Sources: the clients of anthropic 2.12 for Python and of @anthropic-ai/sdk 1.12, Claude Code 2.1, litellm 1.110 and
langchain-anthropic 1.7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentobs.errors import UsageError

PROVIDER_URL = "https://api.anthropic.com"
"""The base URL that clients of the provider use by default."""


@dataclass(frozen=True, slots=True)
class ClientVariable:
    """An environment variable that contains the base URL of a client."""

    name: str
    route: str
    """The path segment after the token under which the proxy serves the variable."""
    default: str | None = None
    """The base URL that clients use if the variable is not set; `{A|B}` is replaced by the value of the first of these
    variables that is set. None: the default is unknown, so the variable is only replaced if it is set.
    """
    needs: str | None = None
    """The variable that must be set for the default to be used. Without it, clients sign each request for the URL that
    they use (AWS Signature Version 4), and AWS rejects a request that was signed for the proxy.
    """


VARIABLES: tuple[ClientVariable, ...] = (
    ClientVariable("ANTHROPIC_BASE_URL", "anthropic", PROVIDER_URL),
    # litellm and langchain read ANTHROPIC_BASE_URL as well, if these are not set.
    ClientVariable("ANTHROPIC_API_BASE", "api-base"),
    ClientVariable("ANTHROPIC_API_URL", "api-url"),
    ClientVariable(
        "ANTHROPIC_BEDROCK_BASE_URL",
        "bedrock",
        "https://bedrock-runtime.{AWS_REGION|AWS_DEFAULT_REGION}.amazonaws.com",
        needs="AWS_BEARER_TOKEN_BEDROCK",
    ),
    ClientVariable(
        "ANTHROPIC_BEDROCK_MANTLE_BASE_URL",
        "mantle",
        "https://bedrock-mantle.{AWS_REGION|AWS_DEFAULT_REGION}.api.aws/anthropic",
        needs="AWS_BEARER_TOKEN_BEDROCK",
    ),
    ClientVariable(
        "ANTHROPIC_VERTEX_BASE_URL",
        "vertex",
        "https://{CLOUD_ML_REGION}-aiplatform.googleapis.com/v1",
    ),
    ClientVariable(
        "ANTHROPIC_FOUNDRY_BASE_URL",
        "foundry",
        "https://{ANTHROPIC_FOUNDRY_RESOURCE}.services.ai.azure.com/anthropic/",
    ),
    ClientVariable("ANTHROPIC_GOOGLE_CLOUD_BASE_URL", "google-cloud"),
    ClientVariable("ANTHROPIC_AWS_BASE_URL", "aws"),
)
"""All known variables. Add one here."""

_SHARED_HOSTS = {
    "https://global-aiplatform.googleapis.com/v1": "https://aiplatform.googleapis.com/v1",
    "https://us-aiplatform.googleapis.com/v1": "https://aiplatform.us.rep.googleapis.com/v1",
    "https://eu-aiplatform.googleapis.com/v1": "https://aiplatform.eu.rep.googleapis.com/v1",
}
"""The base URLs of regions that have no separate host (anthropic 2.12, lib/vertex)."""
_PROXY_VARIABLES = (
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
)
_LOOPBACK = "127.0.0.1,localhost"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the proxy sends the requests of one variable."""

    variable: str
    route: str
    url: str
    """The base URL of the provider or gateway, without a slash at its end."""
    is_default: bool
    """Whether the variable was not set, so that the URL is the default of its clients."""
    is_redirected: bool = False
    """Whether only redirected requests go to this upstream. The variable is not set, so their clients sign them for the
    URL of the provider.
    """


def extra_variable(text: str) -> ClientVariable:
    """Return the variable that a text such as `MY_URL` or `MY_URL=https://gateway/anthropic` describes.

    Without a URL, the variable is served with the provider's default base URL.

    Raises:
        UsageError: the text has neither form.
    """
    name, equals, url = text.partition("=")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None or (equals and not _is_url(url)):
        raise UsageError(
            f"{text[:80]!r} is neither the name of an environment variable nor NAME=URL",
            where="--var",
            todo="Pass the variable from which the program reads its base URL, such as --var MY_BASE_URL, or "
            "--var MY_BASE_URL=https://gateway.example/anthropic if it is not the provider's",
        )
    return ClientVariable(name, f"var-{name.lower()}", url or PROVIDER_URL)


def upstreams(
    environment: Mapping[str, str],
    extra: Sequence[ClientVariable] = (),
    provider: str | None = None,
    *,
    redirects: bool = False,
    signs_aws: bool = False,
) -> list[Upstream]:
    """Return where to send the requests of each variable that is set or has a known default.

    Args:
        environment: the environment of the program.
        extra: variables beyond the known ones; they replace known ones with the same name.
        provider: the base URL to use instead of the provider's default; None means no change.
        redirects: whether to add the defaults that need a variable which is not set, for redirected requests.
        signs_aws: whether requests to AWS are signed again, so that their clients need no other authorization.

    Raises:
        UsageError: a variable is set to something that is not an HTTP URL.
    """
    named = {each.name: each for each in (*VARIABLES, *extra)}
    found = []
    for each in named.values():
        current = environment.get(each.name, "").strip()
        if current and not _is_url(current):
            raise UsageError(
                f"{current[:80]!r} is not an HTTP URL",
                where=each.name,
                todo="Set it to the base URL of the provider or gateway, or unset it",
            )
        url = current or _default_of(each, environment)
        if not current and url == PROVIDER_URL and provider:
            url = provider
        is_signed = not current and each.needs is not None and not environment.get(each.needs)
        if url and not (is_signed and not (signs_aws or redirects)):
            is_redirected = is_signed and not signs_aws
            made = Upstream(each.name, each.route, url.rstrip("/"), not current, is_redirected)
            found.append(made)
    return found


def _default_of(variable: ClientVariable, environment: Mapping[str, str]) -> str | None:
    """Return the base URL that clients use while the variable is not set; None if it is not known."""
    if variable.default is None:
        return None
    url = variable.default
    for names in re.findall(r"\{(.*?)\}", url):
        values = [value for name in names.split("|") if (value := environment.get(name))]
        if not values:
            return None
        url = url.replace("{" + names + "}", values[0])
    return _SHARED_HOSTS.get(url, url)


def base_url_variables(url: str, found: Sequence[Upstream] | None = None) -> dict[str, str]:
    """Return the variables that direct clients to a server.

    Args:
        url: the URL of the server, to which the route of each variable is appended.
        found: the variables to return, from `upstreams`; None means all known variables, directed to `url` itself.
    """
    if found is None:
        return {each.name: url for each in VARIABLES}
    return {each.variable: f"{url}/{each.route}" for each in found if not each.is_redirected}


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make clients reach loopback addresses directly, if an HTTP proxy is configured."""
    if not any(environment.get(name) for name in _PROXY_VARIABLES):
        return {}
    names = ("NO_PROXY", "no_proxy")
    return {name: ",".join(filter(None, (environment.get(name, ""), _LOOPBACK))) for name in names}


def _is_url(text: str) -> bool:
    return re.match(r"https?://[^/\s?#]+", text) is not None
