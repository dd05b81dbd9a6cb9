"""Node.js programs with a fixed base URL: the preloaded script sends their requests to the proxy."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from agentobs.proxy.client_variables import PROVIDER_URL, Upstream
from agentobs.proxy.node_redirection import node_routes, node_variables
from tests.replay.raw_provider import JSON, play_chunks, raw_provider

SCRIPT = """
import https, { request } from "node:https";
import { createRequire } from "node:module";
const base = "https://api.anthropic.com/v1/messages";
const other = process.argv[2];
const post = { method: "POST", headers: { "x-test": "1", host: "api.anthropic.com" } };
const named = { hostname: "api.anthropic.com", path: "/v1/messages?way=options" };
const text = (response) => new Promise((resolve) => {
  let all = "";
  response.on("data", (part) => (all += part)).on("end", () => resolve(all));
});
const sent = (send, body) => new Promise((resolve, reject) =>
  send((response) => resolve(text(response))).on("error", reject).end(body));
const ways = {
  string: async () => (await fetch(base + "?way=string", { ...post, body: "string" })).text(),
  url: async () => (await fetch(new URL(base + "?way=url"), { ...post, body: "url" })).text(),
  object: async () => (await fetch(new Request(base + "?way=object", { ...post, body: "object" }))).text(),
  options: () => sent((done) => https.request({ ...named, ...post }, done), "options"),
  port: () => sent((done) => https.request({ ...named, ...post, host: "api.anthropic.com:443", port: 443,
    path: "/v1/messages?way=port" }, done), "port"),
  both: () => sent((done) => https.request(base + "?way=both", post, done), "both"),
  imported: () => sent((done) => request(base + "?way=imported", post, done), "imported"),
  required: () => sent((done) => createRequire(import.meta.url)("https").request(base + "?way=required", post, done),
    "required"),
  get: () => new Promise((resolve) => https.get(base + "?way=get", (response) => resolve(text(response)))),
  other: async () => (await fetch(other + "/elsewhere?way=other")).text(),
};
const found = {};
for (const [name, way] of Object.entries(ways)) found[name] = await way();
console.log(JSON.stringify(found));
"""
WAYS = ["string", "url", "object", "options", "port", "both", "imported", "required", "get"]


@pytest.mark.node
def test_all_ways_to_send_a_request_are_redirected(tmp_path: Path) -> None:
    """Method, headers, query and body stay, and requests to other hosts are left alone."""
    script = tmp_path / "program.mjs"
    script.write_text(SCRIPT)
    with raw_provider([play_chunks(200, JSON, b'"ok"')] * 10) as provider:
        environment = dict(os.environ)
        routes = {PROVIDER_URL: f"{provider.url}/token/anthropic"}
        environment |= node_variables(environment, routes)
        ended = subprocess.run(
            ["node", str(script), provider.url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == dict.fromkeys([*WAYS, "other"], '"ok"')
    *redirected, other = provider.requests
    assert [(each.path, each.body.decode()) for each in redirected] == [
        (f"/token/anthropic/v1/messages?way={way}", "" if way == "get" else way) for way in WAYS
    ]
    assert {each.headers["host"] for each in redirected} == {provider.url.removeprefix("http://")}
    assert [each.headers.get("x-test") for each in redirected] == ["1"] * 8 + [None]
    assert other.path == "/elsewhere?way=other"


def test_routes_and_options() -> None:
    """Only addresses with TLS are redirected; options and quotes of the user's NODE_OPTIONS stay."""
    found = [
        Upstream("ANTHROPIC_BASE_URL", "anthropic", PROVIDER_URL, is_default=True),
        Upstream("ANTHROPIC_API_BASE", "api-base", "http://gateway:1", is_default=False),
        Upstream("MY_URL", "var-my_url", PROVIDER_URL, is_default=True),
    ]
    routes = node_routes(found, lambda each: f"http://proxy/{each.route}")
    assert routes == {PROVIDER_URL: "http://proxy/anthropic"}
    options = node_variables({"NODE_OPTIONS": "--no-warnings"}, routes)["NODE_OPTIONS"]
    assert options.startswith('--no-warnings --require "')
