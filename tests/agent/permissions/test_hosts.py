"""Hosts and URLs: a blocked host is blocked in every spelling, and a rule allows only unambiguous matches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.permissions import MODES, decide
from agentobs.agent.permissions.hosts import interpretations

from .calls import fetch_call, permissions_for, shell_call, write_call

BLOCKED = [
    ("example.com", "example.com"),
    ("example.com", "EXAMPLE.com"),
    ("example.com", "example.com."),
    ("example.com", "example.com:8443"),
    ("example.com", "https://example.com/path?x=1"),
    ("example.com", "https://user:pw@example.com/"),
    ("example.com", "https://good.com@example.com/"),
    ("example.com", "https://example.com@good.com@example.com"),
    ("example.com", "http://good.com#@example.com/"),
    ("example.com", "http://good.com?@example.com/"),
    ("example.com", "http://example.com#@good.com/"),
    ("example.com", "//example.com/"),
    ("example.com", "http:///example.com/"),
    ("example.com", "ex%61mple.com"),
    ("example.com", "ｅｘａｍｐｌｅ.com"),
    ("example.com", "example。com"),
    ("example.com", "example｡com"),
    ("example.com", "ⓔxample.com"),
    ("example.com", "exam\u00adple.com"),
    ("example.com", "exam\u200bple.com"),
    ("Example.COM.", "example.com"),
    ("*.example.com", "a.example.com"),
    ("*.example.com", "a.b.EXAMPLE.com."),
    ("*.EXAMPLE.com", "https://x@a.example.com:1/"),
    ("bücher.de", "xn--bcher-kva.de"),
    ("xn--bcher-kva.de", "BÜCHER.de"),
    ("bücher.de", "bu\u0308cher.de"),
    ("straße.de", "xn--strae-oqa.de"),
    ("strasse.de", "straße.de"),
    ("xn--strae-oqa.de", "straße.de"),
    ("*.straße.de", "a.strasse.de"),
    ("127.0.0.1", "2130706433"),
    ("127.0.0.1", "0x7f000001"),
    ("127.0.0.1", "0x7f.1"),
    ("127.0.0.1", "127.1"),
    ("127.0.0.1", "127.0.1"),
    ("127.0.0.1", "0177.0.0.01"),
    ("127.0.0.1", "017700000001"),
    ("127.0.0.1", "127.0.0.1."),
    ("127.0.0.1", "[::ffff:127.0.0.1]"),
    ("127.0.0.1", "::ffff:7f00:1"),
    ("127.0.0.1", "http://[::FFFF:7f00:0001]:80/"),
    ("127.0.0.1", "[0:0:0:0:0:ffff:127.0.0.1]"),
    ("127.0.0.1", "[64:ff9b::127.0.0.1]"),
    ("127.0.0.1", "[::127.0.0.1]"),
    ("127.0.0.1", "１２７.0.0.1"),
    ("2130706433", "127.0.0.1"),
    ("10.0.0.1", "010.0.0.1"),
    ("8.0.0.1", "010.0.0.1"),
    ("::1", "[0:0::0:1]"),
    ("::1", "http://[::1]:8080/"),
    ("fe80::1", "[fe80::1%25eth0]"),
    ("169.254.0.0/16", "http://169.254.169.254/latest/meta-data"),
    ("169.254.0.0/16", "0xA9FEA9FE"),
    ("169.254.0.0/16", "::ffff:169.254.169.254"),
    ("fe80::/10", "[fe80::1%25eth0]"),
    ("*", "anything.at.all"),
    ("localhost", "LOCALHOST."),
    ("example.com", "http:\\\\example.com"),
    ("example.com", "http://good.com\\@example.com"),
    ("example.com", "http:example.com"),
    ("example.com", "exam ple.com"),
    ("example.com", "example.com\n"),
    ("example.com", "example.com\0.good.com"),
    ("example.com", "good.com%00.example.com"),
    ("example.com", "https://"),
    ("example.com", ""),
    ("example.com", "a" * 10_000),
    ("example.com", "℀.com"),
    ("example.com", "good.com:x"),
    ("example.com", "["),
]


@pytest.mark.parametrize(("blocked", "host"), BLOCKED, ids=lambda text: ascii(text[:40]))
def test_every_spelling_of_a_blocked_host_is_blocked(blocked: str, host: str) -> None:
    """In any mode and with any rule, a call to a blocked host is denied; a host that cannot be parsed counts as
    blocked.
    """
    for mode in MODES:
        for call in (fetch_call("x", host), write_call("x", hosts=("good.com", host))):
            decision = decide(call, permissions_for(mode, allow=("*",), blocked=(blocked,)))
            assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")


@pytest.mark.parametrize(
    ("blocked", "host"),
    [
        ("example.com", "example.org"),
        ("example.com", "a.example.com"),
        ("example.com", "example.com.good.org"),
        ("example.com", "notexample.com"),
        ("example.com", "https://good.com/example.com?example.com#@example.com"),
        ("example.com", "https://example.com@good.com/"),
        ("*.example.com", "example.com"),
        ("*.example.com", "badexample.com"),
        ("127.0.0.1", "127.0.0.2"),
        ("127.0.0.1", "128.1"),
        ("10.0.0.0/8", "11.0.0.1"),
        ("10.0.0.0/8", "good.com"),
        ("example.com", "bücher.de"),
        ("bücher.de", "bucher.de"),
    ],
)
def test_other_hosts_are_not_blocked(blocked: str, host: str) -> None:
    """A host that only looks similar to a blocked host is not blocked."""
    assert decide(fetch_call("x", host), permissions_for(blocked=(blocked,))).behavior == "allow"


@given(st.text(max_size=30))
def test_any_text_can_be_parsed_as_a_host(host: str) -> None:
    """Any text can be parsed as a host, always with the same result, and is blocked if all hosts are blocked."""
    found = interpretations(host)
    assert interpretations(host) == found
    assert decide(fetch_call("x", host), permissions_for("plan", blocked=("*",))).behavior == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "curl https://example.com/x",
        "curl EXAMPLE.com",
        "curl 'https://u:p@example.com:80/'",
        "git clone git@example.com:a/b",
        "ssh me@example.com.",
        "nc example.com 80",
        "curl http://0x7f.1/",
        "curl http://2130706433",
        "curl --proxy=example.com x",
        "curl http://[::ffff:127.0.0.1]/",
        "ping 127.1",
        "curl ex'am'ple.com",
        'curl "exam"ple\\.com',
        "curl http:\\\\\\\\example.com",
        "curl ex%61mple.com",
        "echo $(curl example.com) > f",
        "X=https://example.com; curl $X",
        "python -c 'open(\"http://example.com/\")'",
    ],
)
def test_a_blocked_host_in_a_command_is_found(command: str) -> None:
    """A command that contains a blocked host is denied, even if the tool declares no host arguments."""
    permissions = permissions_for("bypassPermissions", blocked=("example.com", "127.0.0.1"))
    decision = decide(shell_call(command), permissions)
    assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")


def test_numbers_in_a_command_are_not_hosts() -> None:
    """Neither a number, as in `head -n 0`, nor the domain of an email address counts as a host."""
    permissions = permissions_for(
        "bypassPermissions", blocked=("0.0.0.0", "example.com", "*.x.com")
    )
    assert (
        decide(shell_call("head -n 0 a.txt; sleep 1.5; ls notexample.com"), permissions).behavior
        == "allow"
    )
    assert decide(write_call("a@example.com"), permissions).behavior == "allow"
    assert decide(write_call("https://example.com/x"), permissions).behavior == "deny"


@pytest.mark.parametrize(
    ("pattern", "url", "expected"),
    [
        ("https://a.com/docs/*", "https://a.com/docs/x?y=1#z", "allow"),
        ("https://a.com/docs/*", "HTTPS://A.com.:443/docs/", "allow"),
        ("https://a.com/docs/*", "https://a.com/other", "deny"),
        ("https://a.com/docs/*", "https://a.com/docs/../other", "deny"),
        ("https://a.com/docs/*", "https://a.com/docs/%2e%2E/other", "deny"),
        ("https://a.com/docs/*", "https://a.com/docs/%252e%252e/other", "deny"),
        ("https://a.com/docs/*", "https://a.com/docs/..%5cother", "deny"),
        ("https://a.com/docs/*", "http://a.com/docs/", "deny"),
        ("https://a.com/docs/*", "https://a.com:8443/docs/", "deny"),
        ("https://a.com:8443/*", "https://a.com:8443/docs/", "allow"),
        ("https://a.com:8443/*", "https://a.com/docs/", "deny"),
        ("https://a.com/*", "https://a.com@b.com/", "deny"),
        ("https://a.com/*", "https://u@a.com/", "deny"),
        ("https://a.com/*", "https://a.com.b.com/", "deny"),
        ("https://a.com/*", "https://b.com/https://a.com/", "deny"),
        ("https://a.com/*", "https://a.com\\@b.com/", "deny"),
        ("https://a.com/*", "https://a.com/ x", "deny"),
        ("https://a.com/*", "https://b.com#@a.com/", "deny"),
        ("https://a.com/*", "https://a.com:99999/", "deny"),
        ("https://a.com/*", "a.com", "deny"),
        ("https://a.com", "https://a.com", "allow"),
        ("https://a.com", "https://a.com/x", "deny"),
        ("https://*.a.com/*", "https://x.a.com/", "allow"),
        ("https://*.a.com/*", "https://a.com/", "deny"),
        ("https://*/*", "https://any.org/", "allow"),
        ("*://a.com/*", "http://a.com/x", "allow"),
        ("https://a.com*", "https://a.com.b.com/", "deny"),
        ("https://[::1]/*", "https://[::1]/x", "allow"),
        ("https://straße.de/*", "https://strasse.de/", "allow"),
        ("https://strasse.de/*", "https://straße.de/", "deny"),
        ("host:a.com", "https://a.com/any", "allow"),
        ("host:a.com", "https://a.com.b.com/any", "deny"),
        ("host:a.com", "https://a.com@b.com/any", "deny"),
        ("host:*.a.com", "https://x.a.com/", "allow"),
        ("host:10.0.0.0/8", "http://10.1.2.3/", "allow"),
        ("host:*", "https://any.org/", "allow"),
        ("host:*", "https://exa mple.org/", "deny"),
    ],
)
def test_a_url_is_allowed_only_if_it_is_unambiguous(pattern: str, url: str, expected: str) -> None:
    """A rule compares scheme, host and port separately, and does not allow a URL that programs interpret
    differently.
    """
    call = write_call(url, hosts=(url,))
    decision = decide(call, permissions_for("dontAsk", allow=(f"send_mail({pattern})",)))
    assert decision.behavior == expected


@pytest.mark.parametrize(
    ("pattern", "url", "expected"),
    [
        ("https://a.com/admin/*", "https://a.com/admin/x", "deny"),
        ("https://a.com/admin/*", "https://a.com/public", "allow"),
        ("https://a.com/admin/*", "https://a.com/public/../admin/x", "ask"),
        ("https://a.com/admin/*", "https://u@a.com/admin/x", "ask"),
        ("https://a.com/admin/*", "https://b.com/admin/x", "allow"),
        ("https://a.com/admin/*", "no url", "ask"),
        ("https://a.com*", "https://a.com.b.com/", "deny"),
        ("host:a.com", "https://A.com./", "deny"),
        ("host:a.com", "https://b.com/", "allow"),
        ("host:a.com", "https://b com/", "ask"),
    ],
)
def test_a_url_that_might_be_denied_needs_approval(pattern: str, url: str, expected: str) -> None:
    """A deny rule denies a URL that matches, and requires approval for a URL that a program might interpret as
    a match.
    """
    permissions: Any = permissions_for("bypassPermissions", deny=(f"fetch({pattern})",))
    assert decide(fetch_call(url), permissions).behavior == expected
