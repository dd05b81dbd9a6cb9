"""The transcript: no content before a click; then the full text, or the reason why it is not available."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agentobs.recording.journal.home import Home
from agentobs.recording.options import Options
from agentobs.recording.vault.encryption import KEY_VARIABLE
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import prune
from dashboards.app.session_page import TABS
from dashboards.content.message_view import new_input
from dashboards.content.visible_text import SHOWN, visible
from tests.dashboards.live_app import (
    Client,
    attempts,
    only_session,
    query_rows,
    record_weather_agent,
    serving,
)
from tests.exporters.sample_session import sample_home
from tests.provider_script import call, streamed, text
from tests.queries import query

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> \u202egnp\u202c \x1b[31m [go](javascript:alert(1))"
LONG = "a line of ten million letters: " + "x" * 10_000_000
CANARIES = ("canary-prompt", "canary-system", "canary-result", "canary-answer")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with an agent that gets hostile content from all sides, including ten million characters in one line."""
    return record_weather_agent(
        tmp_path_factory.mktemp("said"),
        prompt=f"canary-prompt {EVIL}",
        system=f"canary-system {EVIL}",
        weather={"Oslo": f"canary-result {EVIL}", "Rome": LONG},
        answers=[
            streamed(call(1, "weather", city="Oslo"), number=1),
            streamed(call(2, "weather", city="Rome"), number=2),
            streamed(text(f"canary-answer {EVIL}"), number=3),
        ],
    )


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


def pages(home: Home) -> list[str]:
    session, tried = only_session(home), attempts(home)
    return [
        f"/sessions/{session}",
        f"/sessions/{session}?failed=1",
        f"/sessions/{session}?find=weather",
        *(f"/sessions/{session}?tab={tab}" for tab in TABS),
        f"/sessions/{session}/tree",
        f"/sessions/{session}/tree?find=weather",
        f"/sessions/{session}/step?step={tried[-1]}",
        f"/sessions/{session}/ledger",
        f"/attempts/{tried[-1]}",
        f"/attempts/{tried[-1]}/diff",
        f"/compare?a={session}&b={session}",
        "/sessions.csv",
        "/sessions.json",
    ]


@pytest.mark.slow
def test_no_page_contains_content_before_a_click(home: Home, client: Client) -> None:
    """The pages of the session, its ledger, requests, changes and comparison have no content before a click, except the
    title of the session, which is a text without effect. Exports have no content.
    """
    for path in pages(home):
        got = client.get(path)
        assert got.status == 200, path
        assert not [word for word in (*CANARIES[1:], "Oslo", EVIL[:20]) if word in got.html]
        escaped = "canary-prompt &lt;/pre&gt; &lt;img src=x"
        assert got.html.count("canary-prompt") == got.html.count(escaped)
        assert "canary" not in got.html or not path.startswith("/sessions.")


@pytest.mark.slow
def test_content_requires_a_post_from_the_dashboard(home: Home, client: Client) -> None:
    """A link, a prefetch and a form of another site get no content; a GET is redirected to the page of the session."""
    path = f"/sessions/{only_session(home)}/transcript"
    led = client.get(path, **{"x-agentobs": "part"})
    assert (led.status, led.headers["location"]) == (303, path.removesuffix("/transcript"))
    assert b"canary" not in led.body
    for headers in (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": client.origin},
        {"x-agentobs": "part"},
    ):
        refused = client.post(path, headers)
        assert refused.status == 403
        assert b"canary" not in refused.body


@pytest.mark.slow
def test_the_transcript_shows_all_content_once(home: Home, client: Client) -> None:
    """System prompt, prompt, calls, results and response are shown once, even if later requests repeat them."""
    got = client.press(f"/sessions/{only_session(home)}/transcript")
    assert [got.html.count(each) for each in CANARIES] == [1, 1, 1, 1]
    words = got.words
    order = (
        "canary-prompt",
        "canary-system",
        "Calls weather",
        "canary-result",
        "canary-answer",
    )
    places = [words.index(each) for each in order]
    assert places == sorted(places)
    assert "city Oslo" in words
    assert "Result from weather" in words


def test_the_raw_text_is_one_click_away(home: Home, client: Client) -> None:
    """The transcript can be shown as plain text, without rendered Markdown and JSON."""
    got = client.press(f"/sessions/{only_session(home)}/transcript", raw=1)
    assert [got.html.count(each) for each in CANARIES] == [1, 1, 1, 1]
    assert '"city": "Oslo"' in got.words
    assert 'class="markdown"' not in got.html
    assert "Show rendered" in got.words


def test_hostile_content_is_text(home: Home, client: Client) -> None:
    """No tag, attribute or link from content reaches the page, and invisible and bidirectional characters are
    escaped.
    """
    tried = attempts(home)
    for path in (
        f"/sessions/{only_session(home)}/transcript",
        f"/attempts/{tried[-1]}/exchange",
        f"/attempts/{tried[1]}/diff/words",
    ):
        got = client.press(path)
        assert "canary-" in got.html
        assert "alert(1)" in got.words
        for tag, attributes in got.tags:
            assert tag not in ("script", "img", "iframe", "style", "object"), path
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            assert not str(attributes.get("href", "")).startswith("javascript")
        assert "&lt;script&gt;" in got.html
        assert not [mark for mark in "\u202e\u202c\x1b" if mark in got.html]
        assert "\\u202egnp" in got.html


def test_a_long_text_is_cut_and_can_be_downloaded(home: Home, client: Client) -> None:
    """The page shows the beginning of a text of ten million characters and its length; the download is complete."""
    got = client.press(f"/sessions/{only_session(home)}/transcript")
    assert len(got.body) < 10 * SHOWN
    assert f"The first {SHOWN:,} of {len(LONG):,} characters." in got.words
    third = attempts(home)[2]
    saved = client.press(
        f"/attempts/{third}/text", side="request", keys='["messages", 4, "content", 0, "content"]'
    )
    assert saved.body.decode() == LONG
    assert saved.headers["content-type"] == "text/plain; charset=utf-8"
    assert saved.headers["content-disposition"] == f'attachment; filename="{third}-request.txt"'
    assert saved.headers["x-content-type-options"] == "nosniff"
    assert f"/attempts/{third}/text" in got.html
    assert "&#34;messages&#34;, 4, &#34;content&#34;, 0, &#34;content&#34;" in got.html


@pytest.mark.slow
def test_an_unknown_text_gives_one_sentence(home: Home, client: Client) -> None:
    """An invalid or unknown path in a message gives one sentence."""
    third = attempts(home)[2]
    for keys in ('["messages", 99]', "nonsense", '{"a": 1}', "[[]]"):
        got = client.press(f"/attempts/{third}/text", side="request", keys=keys)
        assert got.status == 404
        assert "the text does not exist in this message" in got.words


def test_without_a_script_the_transcript_is_a_page(home: Home, client: Client) -> None:
    """Without the script, the form opens a complete page, which names the session, and a link back."""
    session = only_session(home)
    got = client.press(f"/sessions/{session}/transcript", part=False)
    assert "<html" in got.html
    [[name]] = query_rows(home, "SELECT name FROM sessions")
    assert f"<h1>Transcript of {name}</h1>" in got.html
    title = re.search(
        r'<p class="line"><span>(.*?)</span><span class="mono">(.*?)</span>', got.html
    )
    assert title is not None
    assert "canary-prompt" in title[1]
    assert title[2] == session
    assert "Back to the session" in got.words
    assert "canary-answer" in got.html
    assert f'href="/sessions/{session}"' in got.html


def test_content_is_never_cached(home: Home, client: Client) -> None:
    """Responses with content forbid caching."""
    got = client.press(f"/sessions/{only_session(home)}/transcript")
    assert "no-store" in got.headers["cache-control"]


@dataclass(frozen=True)
class Withheld:
    """A home with sessions whose content is not available, by the reason."""

    home: Home
    client: Client
    sessions: Mapping[str, str]

    def transcript(self, reason: str) -> str:
        return f"/sessions/{self.sessions[reason]}/transcript"


SEALING_KEY = bytes(range(32)).hex()


@pytest.fixture(scope="module")
def withheld(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Withheld]:
    """Sessions whose content was not recorded, pruned, damaged or encrypted."""
    path = tmp_path_factory.mktemp("withheld")
    sessions: dict[str, str] = {}

    def recorded(reason: str, options: Options | None = None) -> Home:
        home = record_weather_agent(path, options, prompt="canary-prompt")
        [sessions[reason]] = [
            str(row[0])
            for row in query(
                "SELECT session_id FROM sessions ORDER BY started_ns DESC LIMIT 1", home=home
            )
        ]
        return home

    home = recorded("damaged")
    [content] = home.segments.glob("*.content*")
    whole = content.read_bytes()
    content.write_bytes(whole.replace(b"Oslo is wet", b"Oslo is dry"))
    assert content.read_bytes() != whole
    recorded("unrecorded", Options(content="off"))
    recorded("pruned")
    ingest(home)
    prune(home, sessions=[sessions["pruned"]], what="content")
    with mock.patch.dict(os.environ, {KEY_VARIABLE: SEALING_KEY}):
        recorded("encrypted")
    with serving(home) as client:
        yield Withheld(home, client, sessions)


@pytest.mark.slow
def test_unrecorded_content_has_no_button(withheld: Withheld) -> None:
    """If content was not recorded, the page explains this without a button, and so does a direct request."""
    got = withheld.client.get(f"/sessions/{withheld.sessions['unrecorded']}?tab=transcript")
    assert "This session was recorded without content" in got.words
    assert "Show content" not in got.words
    result = withheld.client.press(withheld.transcript("unrecorded")).words
    assert "the session was recorded without content" in result
    assert "canary" not in result


@pytest.mark.slow
def test_pruned_content_is_explained(withheld: Withheld) -> None:
    """The page shows the day of the pruning, and states that the facts were kept."""
    session, client = withheld.sessions["pruned"], withheld.client
    page = client.get(f"/sessions/{session}?tab=transcript").words
    assert "The content was deleted on" in page
    assert "all other data was kept." in page
    result = client.press(withheld.transcript("pruned")).words
    assert "was pruned on" in result
    assert "canary" not in result
    sql = f"SELECT attempt_id FROM attempts WHERE session_id = '{session}' ORDER BY started_ns"
    [first, *_] = query_rows(withheld.home, sql)
    assert "was pruned on" in client.press(f"/attempts/{first[0]}/exchange").words


@pytest.mark.slow
def test_damaged_content_affects_only_itself(withheld: Withheld) -> None:
    """Damaged content is replaced by an explanation, and the rest of the transcript is shown."""
    result = withheld.client.press(withheld.transcript("damaged"))
    assert result.status == 200
    assert "canary-prompt" in result.words
    assert "Not available: content" in result.words
    assert "agentobs verify shows" in result.words
    assert "Oslo is" not in result.words


@pytest.mark.slow
def test_encrypted_content_needs_its_key(withheld: Withheld) -> None:
    """Without the key, the pages show all facts and name the key; with the key, they show the content."""
    path, client = withheld.transcript("encrypted"), withheld.client
    result = client.press(path).words
    assert "the content is sealed, and there is no key" in result
    assert "canary" not in result
    assert client.get(path.removesuffix("/transcript")).status == 200
    with mock.patch.dict(os.environ, {KEY_VARIABLE: SEALING_KEY}):
        assert "canary-prompt" in client.press(path).words


@pytest.mark.slow
def test_each_lane_has_its_own_transcript(tmp_path: Path) -> None:
    """The lane of a sub-agent can be selected; failed attempts show their error, and thinking is collapsed."""
    home = sample_home(tmp_path)
    session = only_session(home)
    [[helper]] = query_rows(
        home,
        "SELECT DISTINCT lane FROM attempts WHERE lane <> 'main' AND makes_turns",
    )
    with serving(home) as client:
        main = client.press(f"/sessions/{session}/transcript")
        assert re.search(
            r"<details><summary>Thinking [^<]*</summary>\s*<div[^>]*><p>Let me look.", main.html
        )
        assert f'value="{helper}"' in main.html
        other = client.press(f"/sessions/{session}/transcript", lane=helper)
        assert "of 1 in helper" in other.words
        assert "attempt 2" in main.words
        assert "overloaded_error" in main.words


TURNS = 45


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    """A session with three pages of turns, each with a call except the last one, and its ID."""
    replies = [
        streamed(text(f"answer-{n}."), call(n, "clock", n=n), number=n) for n in range(1, TURNS)
    ]
    home = record_weather_agent(
        tmp_path_factory.mktemp("long"),
        prompt="first-prompt",
        answers=[*replies, streamed(text("the-end"), number=TURNS)],
    )
    with serving(home) as made:
        yield made, only_session(home)


@pytest.mark.slow
def test_a_transcript_is_paged(long: tuple[Client, str]) -> None:
    """The pages contain the complete session, and a page does not repeat the messages of earlier pages."""
    client, session = long
    path = f"/sessions/{session}/transcript"
    result = [client.press(path, page=number).words for number in (1, 2, 3, 99)]
    assert [len(re.findall("Turn [0-9]", each)) for each in result] == [20, 20, 5, 5]
    whole = "".join(result[:3])
    assert [whole.count(f"answer-{n}.") for n in range(1, TURNS)] == [1] * (TURNS - 1)
    assert whole.count("first-prompt") == 1
    assert whole.count("Result from clock") == TURNS - 1
    assert "41–45 of 45" in result[2]


@pytest.mark.slow
def test_calls_are_paired_with_their_results(long: tuple[Client, str]) -> None:
    """A result is shown once, at its call, even if the call is the last one of a page; each turn has its time."""
    client, session = long
    path = f"/sessions/{session}/transcript"
    first, second = (client.press(path, page=number) for number in (1, 2))
    for number in range(1, 21):
        turn = first.html.partition(f'id="turn-{number}"')[2].partition("</article>")[0]
        assert turn.count("Result from clock") == 1
        assert turn.index("Calls clock") < turn.index("Result from clock")
        assert re.search(r"[0-9.]+ (ms|s|µs), ", turn)
    assert first.words.count("Result from clock") == 20
    assert second.words.count("Result from clock") == 20
    assert "Result from clock" not in second.html.partition('id="turn-21"')[0]


@pytest.mark.slow
def test_a_turn_can_be_opened(long: tuple[Client, str]) -> None:
    """A number of a turn opens the page that contains it; a turn in the URL is part of the button."""
    client, session = long
    got = client.press(f"/sessions/{session}/transcript", turn=30)
    assert 'id="turn-30"' in got.html
    assert "Requests 21–40 of 45" in got.words
    assert 'id="turn-45"' in client.press(f"/sessions/{session}/transcript", turn=999).html
    page = client.get(f"/sessions/{session}?tab=transcript&turn=30")
    assert '<input type="hidden" name="turn" value="30">' in page.html


def test_a_rewritten_history_is_shown_again() -> None:
    """Messages that were changed or removed are counted, and their new versions are shown."""
    old: dict[str, Any] = {"messages": [{"role": "user", "content": str(n)} for n in range(4)]}
    new = {"messages": [old["messages"][0], {"role": "user", "content": "a summary"}]}
    result = new_input(old, None, new)
    assert result.rewritten == 3
    assert [block.text.shown for each in result.messages for block in each.blocks] == ["a summary"]


def test_cache_breakpoints_do_not_make_messages_new() -> None:
    """A message that gains or loses a cache breakpoint is not new, even if its text becomes a list of blocks."""
    mark = {"cache_control": {"type": "ephemeral"}}
    old = {"messages": [{"role": "user", "content": "hello"}]}
    new = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello", **mark}]},
            {"role": "user", "content": "more"},
        ]
    }
    result = new_input(old, None, new)
    assert (result.rewritten, len(result.messages)) == (0, 1)


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("\x1b[0m", "\\u001b[0m"),
        ("\udc80", "\\udc80"),
        ("\U000e0041", "\\ue0041"),
        ("a\tb\r\nc", "a\tb\nc"),
        ("x\u200dy", "x\u200dy"),
    ],
)
def test_invisible_characters_are_escaped(hidden: str, shown: str) -> None:
    """Control, bidirectional and tag characters and lone surrogates are escaped; line breaks and joiners are kept."""
    assert visible(hidden) == shown
