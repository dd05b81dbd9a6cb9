"""Client variables: where the requests of a program went before, and how they are directed to the proxy."""

from __future__ import annotations

import pytest

from agentobs.errors import UsageError
from agentobs.proxy.client_variables import (
    PROVIDER_URL,
    base_url_variables,
    extra_variable,
    upstreams,
    without_proxy,
)


def urls(environment: dict[str, str], *extra: str) -> dict[str, str]:
    found = upstreams(environment, [extra_variable(each) for each in extra])
    return {each.variable: each.url for each in found}


def test_without_any_variable_only_the_provider_is_known() -> None:
    """A variable whose default is unknown is left alone, because its client may not use it."""
    assert urls({}) == {"ANTHROPIC_BASE_URL": PROVIDER_URL}


def test_a_gateway_stays_the_upstream() -> None:
    """The base URL that the program had is where its requests go."""
    gateway = "https://gateway.example/anthropic"
    found = urls({"ANTHROPIC_BASE_URL": f"{gateway}/", "ANTHROPIC_API_BASE": "http://other:1"})
    assert found == {"ANTHROPIC_BASE_URL": gateway, "ANTHROPIC_API_BASE": "http://other:1"}


def test_platforms_are_redirected_where_their_authorization_allows_it() -> None:
    """Bedrock needs a bearer token, because other requests are signed for its host; Vertex has regions without one."""
    region = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-east-1"}
    assert "ANTHROPIC_BEDROCK_BASE_URL" not in urls(region)
    token = urls({**region, "AWS_BEARER_TOKEN_BEDROCK": "x"})
    assert token["ANTHROPIC_BEDROCK_BASE_URL"] == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    vertex = "ANTHROPIC_VERTEX_BASE_URL"
    assert urls({"CLOUD_ML_REGION": "us-east5"})[vertex] == (
        "https://us-east5-aiplatform.googleapis.com/v1"
    )
    assert urls({"CLOUD_ML_REGION": "global"})[vertex] == "https://aiplatform.googleapis.com/v1"


def test_each_variable_has_its_own_route() -> None:
    """The proxy tells the clients apart by the path."""
    found = upstreams(
        {"ANTHROPIC_FOUNDRY_BASE_URL": "https://f.example/a"}, [extra_variable("MY_URL")]
    )
    assert base_url_variables("http://127.0.0.1:1/token", found) == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1/token/anthropic",
        "ANTHROPIC_FOUNDRY_BASE_URL": "http://127.0.0.1:1/token/foundry",
        "MY_URL": "http://127.0.0.1:1/token/var-my_url",
    }


def test_extra_variables() -> None:
    """A name alone means the provider; any other base URL is given with the name."""
    assert urls({}, "MY_URL")["MY_URL"] == PROVIDER_URL
    assert urls({}, "MY_URL=http://g:1/x")["MY_URL"] == "http://g:1/x"
    assert urls({"MY_URL": "http://set:1"}, "MY_URL=http://g:1")["MY_URL"] == "http://set:1"


@pytest.mark.parametrize("text", ["", "1X", "A B", "MY_URL=", "MY_URL=gateway", "=http://g"])
def test_a_wrong_extra_variable_is_refused(text: str) -> None:
    """The error quotes what was passed."""
    with pytest.raises(UsageError, match="--var"):
        extra_variable(text)


def test_a_variable_without_a_url_is_refused() -> None:
    """A program would fail with it as well, but later and less clearly."""
    with pytest.raises(UsageError, match="ANTHROPIC_BASE_URL"):
        upstreams({"ANTHROPIC_BASE_URL": "gateway.example"})


def test_an_http_proxy_does_not_get_the_requests_to_the_recording_proxy() -> None:
    """Exceptions that exist are kept."""
    assert without_proxy({}) == {}
    found = without_proxy({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp.example"})
    assert found["NO_PROXY"] == "corp.example,127.0.0.1,localhost"
