"""Requests that are signed for the proxy are signed again, or refused with the reason; AWS accepts all others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from agentobs.errors import UsageError
from agentobs.proxy.aws_signing import AwsSigner
from agentobs.proxy.client_variables import Upstream, base_url_variables, upstreams
from agentobs.proxy.forwarding import SIGNED_FOR_PROXY
from agentobs.proxy.node_redirection import REDIRECTED
from tests.proxy.proxies import proxied
from tests.replay.raw_provider import JSON, Call, raw_provider

REGION, SERVICE = "eu-west-1", "bedrock"
SECRET = "a-secret-key-that-no-file-may-contain"
CREDENTIALS = Credentials("AKIDEXAMPLE", SECRET, "a-session-token-that-no-file-may-contain")
PATH = "/model/eu.anthropic.claude-sonnet-5-v1:0/invoke"
BODY = json.dumps(
    {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "ä"}],
    }
).encode()
ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5",
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def signed(url: str, credentials: Credentials = CREDENTIALS, **headers: str) -> dict[str, str]:
    """Return the headers of a request that is signed as clients of the provider's SDK sign it."""
    named = {"content-type": "application/json", **headers}
    request = AWSRequest(method="POST", url=url, headers=named, data=BODY)
    SigV4Auth(credentials, SERVICE, REGION).add_auth(request)
    return dict(request.headers.items())


def is_valid(call: Call, url: str, credentials: Credentials = CREDENTIALS) -> bool:
    """Return whether a server at a URL would accept the signature of a request, as AWS verifies it."""
    found = re.match(
        r"AWS4-HMAC-SHA256 Credential=\S+, SignedHeaders=(\S+), Signature=(\w+)",
        call.headers["authorization"],
    )
    assert found is not None
    names = [each for each in found[1].split(";") if each != "host"]
    headers = {name: call.headers[name] for name in names}
    request = AWSRequest(method="POST", url=url + call.path, headers=headers, data=call.body)
    request.context["timestamp"] = call.headers["x-amz-date"]
    auth = SigV4Auth(credentials, SERVICE, REGION)
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return bool(auth.signature(text, request) == found[2])


def answering(call: Call) -> None:
    call.send_headers(200, JSON)
    call.send(json.dumps(ANSWER).encode())
    call.end()


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """The credentials in the environment, which are not those of the client."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDUSER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-key-of-the-user")
    return Credentials("AKIDUSER", "the-secret-key-of-the-user")


def test_a_request_is_signed_again(tmp_path: Path, user: Credentials) -> None:
    """The provider verifies the new signature, for its own address; nothing of either signature is written."""
    with (
        raw_provider([answering]) as provider,
        proxied(provider.url, tmp_path, sign=AwsSigner()) as recorded,
    ):
        url = f"{recorded.url}{PATH}"
        headers = signed(url, **{"x-other": "1"})
        response = httpx2.post(url, content=BODY, headers=headers, timeout=60)
        [exchange] = recorded.exchanges()
        [request] = provider.requests
        assert is_valid(request, provider.url, user)
    assert (response.status_code, response.json()) == (200, ANSWER)
    assert (request.path, request.body, request.headers["x-other"]) == (PATH, BODY, "1")
    assert "x-amz-security-token" not in request.headers
    assert exchange.question.body == BODY
    written = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    for secret in ("Signature=", "AKID", "secret-key", "session-token"):
        assert secret.encode() not in written


def test_a_request_that_is_signed_for_the_proxy_is_not_valid_elsewhere(tmp_path: Path) -> None:
    """A gateway receives the request unchanged, and may accept it."""
    with (
        raw_provider([answering]) as provider,
        proxied(provider.url, tmp_path) as recorded,
        pytest.warns(RuntimeWarning, match="signed for the proxy's address"),
    ):
        url = f"{recorded.url}{PATH}"
        response = httpx2.post(url, content=BODY, headers=signed(url), timeout=60)
        [request] = provider.requests
        assert not is_valid(request, provider.url)
    assert response.status_code == 200


def test_aws_gets_no_request_that_it_would_reject(tmp_path: Path) -> None:
    """The client gets the reason, and what to do."""
    with proxied(f"https://bedrock-runtime.{REGION}.amazonaws.com", tmp_path) as recorded:
        url = f"{recorded.url}{PATH}"
        response = httpx2.post(url, content=BODY, headers=signed(url), timeout=60)
        assert recorded.proxy.counts.signed == 1
        assert recorded.proxy.counts.forwarded == 0
    assert response.status_code == 400
    assert SIGNED_FOR_PROXY in response.text
    assert response.headers["x-agentobs-error"] == "1"


def test_a_redirected_request_keeps_its_valid_signature(tmp_path: Path) -> None:
    """Its client signed it for the provider, because it does not know the proxy."""

    def sign(request: httpx2.Request) -> httpx2.Request:
        raise AssertionError

    with (
        raw_provider([answering]) as provider,
        proxied(provider.url, tmp_path, sign=sign) as recorded,
    ):
        headers = signed(f"{provider.url}{PATH}")
        url = f"{recorded.proxy.url}/{REDIRECTED}anthropic{PATH}"
        response = httpx2.post(url, content=BODY, headers=headers, timeout=60)
        [request] = provider.requests
        assert is_valid(request, provider.url)
    assert response.status_code == 200


def test_a_signature_without_a_region_is_not_replaced(tmp_path: Path, user: Credentials) -> None:
    """The client gets the reason."""
    with (
        raw_provider([]) as provider,
        proxied(provider.url, tmp_path, sign=AwsSigner()) as recorded,
    ):
        headers = {"authorization": "AWS4-HMAC-SHA256 Credential=AKID, Signature=0"}
        response = httpx2.post(f"{recorded.url}{PATH}", content=BODY, headers=headers, timeout=60)
    assert response.status_code == 400
    assert "cannot sign the request: the signature does not name a region" in response.text


def test_a_role_that_aws_refuses_is_reported_to_the_client(
    tmp_path: Path, user: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials are renewed during a request, and AWS may refuse that."""
    signer = AwsSigner()

    def refused() -> None:
        raise ClientError({"Error": {"Code": "ExpiredToken", "Message": "expired"}}, "AssumeRole")

    monkeypatch.setattr(signer._credentials, "get_frozen_credentials", refused)
    with raw_provider([]) as provider, proxied(provider.url, tmp_path, sign=signer) as recorded:
        url = f"{recorded.url}{PATH}"
        response = httpx2.post(url, content=BODY, headers=signed(url), timeout=60)
    assert response.status_code == 400
    assert "cannot sign the request: the AWS credentials cannot be used" in response.text


def test_without_credentials_nothing_is_signed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One error states what to set."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UsageError, match="no AWS credentials were found"):
        AwsSigner()
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(UsageError, match="cannot be read"):
        AwsSigner()


def test_signing_directs_clients_of_bedrock_to_the_proxy() -> None:
    """Redirected requests are only for clients that know no other address, so no variable is set for them."""
    environment = {"AWS_REGION": REGION}
    url = f"https://bedrock-runtime.{REGION}.amazonaws.com"
    bedrock = Upstream("ANTHROPIC_BEDROCK_BASE_URL", "bedrock", url, is_default=True)
    assert bedrock in upstreams(environment, signs_aws=True)
    redirected = upstreams(environment, redirects=True)
    assert url in [each.url for each in redirected]
    assert list(base_url_variables("http://127.0.0.1:1/t", redirected)) == ["ANTHROPIC_BASE_URL"]
