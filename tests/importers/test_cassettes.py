"""Cassettes: each tool's layout gives the same exchanges, and no cassette can run code or exhaust the memory."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import yaml

from agentobs.errors import ForeignError
from agentobs.importers.recordings import yaml_items as yaml_module
from agentobs.importers.recordings.cassettes import cassette_exchanges
from agentobs.importers.recordings.stored_exchanges import StoredExchange, converted, is_placeholder
from agentobs.records.exchanges import UNRECORDED_HEADERS
from tests.importers.recorded_agent import SECRET, Pair, cassette, recorded_pairs

PAIRS = recorded_pairs()


def as_yaml(value: Any) -> bytes:
    return yaml.dump(value, allow_unicode=True).encode()


def vcrpy_yaml(pairs: list[Pair]) -> bytes:
    return as_yaml(cassette(pairs))


def vcrpy_json(pairs: list[Pair]) -> bytes:
    return json.dumps(cassette(pairs), indent=4).encode()


def vcrpy_binary(pairs: list[Pair]) -> bytes:
    """Return a cassette whose bodies are bytes, as `!!binary`."""
    value = cassette(pairs)
    for each in value["interactions"]:
        each["request"]["body"] = each["request"]["body"].encode()
        each["response"]["body"]["string"] = each["response"]["body"]["string"].encode()
    return as_yaml(value)


def parsed_bodies(pairs: list[Pair]) -> bytes:
    """Return a cassette of pydantic-ai, whose serializer stores parsed JSON."""
    value = cassette(pairs)
    for each in value["interactions"][1:]:
        each["request"]["parsed_body"] = json.loads(each["request"].pop("body"))
        each["response"]["parsed_body"] = json.loads(each["response"].pop("body")["string"])
    return as_yaml(value)


def two_lists(pairs: list[Pair]) -> bytes:
    """Return a cassette of langchain's serializer."""
    interactions = cassette(pairs)["interactions"]
    lists: dict[str, list[Any]] = {"requests": [], "responses": []}
    for each in interactions:
        lists["requests"].append(each["request"])
        lists["responses"].append(each["response"])
    return as_yaml(lists)


def ruby_interactions(pairs: list[Pair]) -> list[dict[str, Any]]:
    found = []
    for each in cassette(pairs)["interactions"]:
        request, response = each["request"], each["response"]
        request = {
            **request,
            "method": request["method"].lower(),
            "body": {"encoding": "UTF-8", "string": request["body"]},
        }
        response = {
            **response,
            "body": {"encoding": "ASCII-8BIT", **response["body"]},
            "http_version": None,
        }
        found.append(
            {
                "request": request,
                "response": response,
                "recorded_at": "Wed, 04 Feb 2026 00:00:07 GMT",
            }
        )
    return found


def ruby_yaml(pairs: list[Pair]) -> bytes:
    return b"---\n" + as_yaml(
        {"http_interactions": ruby_interactions(pairs), "recorded_with": "VCR 6.4.0"}
    )


def ruby_json(pairs: list[Pair]) -> bytes:
    return json.dumps(
        {"http_interactions": ruby_interactions(pairs), "recorded_with": "VCR 6.4.0"}
    ).encode()


def ruby_base64(pairs: list[Pair]) -> bytes:
    interactions = ruby_interactions(pairs)
    for each in interactions:
        body = each["response"]["body"]
        body["base64_string"] = base64.encodebytes(body.pop("string").encode()).decode()
    return as_yaml({"http_interactions": interactions})


def go_vcr(pairs: list[Pair]) -> bytes:
    interactions = []
    for number, each in enumerate(cassette(pairs)["interactions"]):
        request, response = each["request"], each["response"]
        interactions.append(
            {
                "id": number,
                "request": {"proto": "HTTP/1.1", "url": request.pop("uri"), "host": "api.anthropic.com", **request},
                "response": {
                    "status": "200 OK", "code": 200, "duration": "1m1.5s", "headers": response["headers"],
                    "body": response["body"]["string"],
                },
            }
        )  # fmt: skip
    return b"---\n" + as_yaml({"version": 2, "interactions": interactions})


LAYOUTS: list[Callable[[list[Pair]], bytes]] = [
    vcrpy_yaml, vcrpy_json, vcrpy_binary, parsed_bodies, two_lists, ruby_yaml, ruby_json, ruby_base64, go_vcr,
]  # fmt: skip


def provider_exchanges(data: bytes) -> list[StoredExchange]:
    return [each for each in cassette_exchanges(data) if each.goes_to_provider]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_has_the_same_exchanges(layout: Callable[[list[Pair]], bytes]) -> None:
    """Method, path, status, headers and bodies are those of the recording; the request to another host is apart."""
    found = provider_exchanges(layout(PAIRS))
    assert len(list(cassette_exchanges(layout(PAIRS)))) == 3
    assert [(each.method, each.path, each.status) for each in found] == [
        ("POST", "/v1/messages", 200)
    ] * 2
    for each, pair in zip(found, PAIRS, strict=True):
        done = converted(each, 0)
        assert json.loads(each.request_body or b"") == json.loads(pair.request_body)
        assert json.loads(done.exchange.answer.body) == json.loads(pair.response_body)
        if layout is not parsed_bodies:
            assert (each.request_body, done.exchange.answer.body) == (
                pair.request_body,
                pair.response_body,
            )
        assert (
            done.exchange.question.headers["anthropic-version"]
            == pair.request_headers["anthropic-version"]
        )
        assert "x-api-key" not in done.exchange.question.headers
        assert done.exchange.secrets == (SECRET.encode(),)
        assert "set-cookie" not in done.exchange.answer.headers
        assert done.is_complete
        assert not done.lacks_headers
    is_ruby = layout in (ruby_yaml, ruby_json, ruby_base64)
    seconds = [7, 7] if is_ruby else [0, 1]
    start = 1_770_163_200 * 10**9
    assert [each.started_ns for each in found] == [start + second * 10**9 for second in seconds]
    assert [each.duration_ns for each in found] == [61_500_000_000 if layout is go_vcr else 0] * 2


def test_an_alias_is_its_value() -> None:
    """PyYAML writes an object that occurs twice as an alias."""
    value = cassette(PAIRS)
    shared = value["interactions"][1]["request"]["headers"]
    value["interactions"][2]["request"]["headers"] = shared
    data = as_yaml(value)
    assert b"*id001" in data
    assert len(provider_exchanges(data)) == 2


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("interactions:\n- !!python/object/apply:os.system [id]\n", "a YAML tag that could create an object"),
        ("interactions:\n- request: !!python/name:os.system ''\n", "a YAML tag that could create an object"),
        ("interactions:\n- !ruby/object:VCR::HTTPInteraction {a: 1}\n", "a YAML tag that could create an object"),
        (BOMB + "interactions: [*i]\n", "an item with more than"),
        ("interactions: [" + "[" * 5000, "nested too deeply"),
        ("interactions: &a [*a]\n", "a YAML alias without its anchor"),
        ("interactions:\n- {a: 1}\n", "exchange 1: it has no request"),
        ("interactions: [1]\n", "exchange 1: it has no request"),
        ("interactions: []\n---\na: 1\n", "more than one YAML document"),
        ("- request: {}\n", "a YAML document that is not a dictionary"),
        ("services: {}\n", "not a cassette: it has no list of interactions"),
        ('{"interactions": [{"request": {}}', "the file is truncated"),
        ('{"interactions": [1]}', "an element of `interactions` that is not an object"),
        ('{"other": []}', "not a cassette"),
        ("requests:\n- {}\nresponses: []\n", "1 requests, but 0 responses"),
        ("interactions: [\x00]", "not YAML"),
    ],
)  # fmt: skip
def test_bad_cassettes_are_refused(text: str, found: str) -> None:
    """One error states what is wrong; nothing of the document is executed, and aliases cannot fill the memory."""
    with pytest.raises(ForeignError, match=found):
        list(cassette_exchanges(text.encode()))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyYAML, the error names the extra; JSON cassettes do not need it."""
    monkeypatch.setattr(yaml_module, "yaml", None)
    with pytest.raises(Exception, match=r"needs PyYAML.*cassettes"):
        list(cassette_exchanges(vcrpy_yaml(PAIRS)))
    assert len(provider_exchanges(vcrpy_json(PAIRS))) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("<API_KEY>", True), ("**REDACTED**", True), ("[FILTERED]", True), ("X-API-KEY-XXX", True), ("", True),
        ("dummy", True), ("***", True), ("application/json", False), ("2023-06-01", False), ("req_011abc", False),
        ("files-api-2025-04-14", False), ("0", False), (SECRET, False), ("text/event-stream; charset=utf-8", False),
    ],
)  # fmt: skip
def test_placeholders_are_recognized(value: str, expected: bool) -> None:
    """Placeholders of public cassettes are not headers; real values are."""
    assert is_placeholder(value) is expected


@pytest.mark.parametrize(
    ("headers", "unrecorded"),
    [
        ({"anthropic-version": "2023-06-01"}, None),
        ({"anthropic-version": "2023-06-01", "anthropic-beta": "<BETA>"}, "anthropic-beta"),
        ({"anthropic-beta": "files-api-2025-04-14"}, "anthropic-version"),
        ({}, "anthropic-beta,anthropic-version"),
    ],
)
def test_unknown_headers_are_named(headers: dict[str, str], unrecorded: str | None) -> None:
    """Each request has the version, so if it is missing, the tool did not keep the headers."""
    stored = StoredExchange(
        "POST", "https://api.anthropic.com/v1/messages", headers, b"{}", 200, {}, b"{}"
    )
    assert converted(stored, 0).exchange.question.headers.get(UNRECORDED_HEADERS) == unrecorded


BINARY = bytes(range(256))


@pytest.mark.parametrize(
    ("encoding", "body", "expected"),
    [
        ("", BINARY, BINARY),
        ("identity", BINARY, BINARY),
        ("br", BINARY, BINARY),
        ("**REDACTED**", BINARY, BINARY),
        ("gzip", gzip.compress(BINARY), BINARY),
        ("", gzip.compress(BINARY), BINARY),
        ("**REDACTED**", brotli.compress(BINARY), BINARY),
        ("deflate", zlib.compress(BINARY), BINARY),
        ("gzip", b"\x1f\x8b\x08\x00" + BINARY, b""),
    ],
)
def test_binary_bodies_are_kept(encoding: str, body: bytes, expected: bytes) -> None:
    """A binary body without an encoding is kept, even if a header claims an encoding; a damaged one is missing."""
    headers = {"content-encoding": encoding, "content-type": "application/octet-stream"}
    url = "https://api.anthropic.com/v1/files/1/content"
    done = converted(StoredExchange("GET", url, {}, b"", 200, headers, body), 0)
    assert done.exchange.answer.body == expected
    assert done.lacks_response == (not expected)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.anthropic.com/v1/messages", True),
        ("https://api.anthropic.com/v1/messages/count_tokens?beta=true", True),
        ("https://api.anthropic.com/v1/files", True),
        ("https://api.anthropic.com/api/event_logging/batch", False),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-sonnet-4/invoke", True),
        ("https://x-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google/models/g:x", False),
        ("https://api.openai.com/v1/chat/completions", False),
        ("https://claude.ai/api/organizations", False),
        ("https://[broken", False),
    ],
)  # fmt: skip
def test_requests_to_the_provider_are_recognized_without_headers(url: str, expected: bool) -> None:
    """Hosts and routes are enough, because sanitized cassettes have no headers."""
    assert StoredExchange("POST", url, {}, b"{}").goes_to_provider is expected
    assert not StoredExchange("OPTIONS", url, {}, b"{}").goes_to_provider
