"""`agentobs report` writes one file that needs no network, has content only on request, and whose numbers add up."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.errors import UsageError
from agentobs.installation import install_extra
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import Place, Question, Recording
from agentobs.records.facts import Event, Gap
from agentobs.records.labels import Label
from agentobs.store.backend import open_store
from dashboards.content.session_content import session_content
from dashboards.report import html_report
from dashboards.report.html_report import LIGHT, session_report
from exporters.new_files import write_text
from tests.cli.test_commands import Shell
from tests.shared_stores import shared_store
from tests.store.recordings import (
    ROOT,
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
    usage_row,
    write_facts,
)

CONTENT_TEXTS = (
    "line 0 of session",
    "canary-answer",
    "Bern",
    "sunny",
    "canary-error",
    "canary-thought",
)
"""Content of users, the model and tools, none of which is a name."""
HOSTILE = "</title></pre><script>hacked()</script><img src=x onerror=hacked()>\x1b[31m\u202e{{7*7}}"
DAY = 86_400 * SECOND

Write = Callable[..., str]


class Page(HTMLParser):
    """The parsed elements, texts and scripts of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.shown: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in self.raw:
            self.raw[self._within][-1] += data
        else:
            self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.shown).split())

    def scripts(self) -> list[str]:
        """The scripts that run."""
        kinds = [attrs.get("type") for tag, attrs in self.tags if tag == "script"]
        return [s for kind, s in zip(kinds, self.raw["script"], strict=True) if kind is None]

    @property
    def policy(self) -> str:
        [found] = [a["content"] for t, a in self.tags if a.get("http-equiv") and t == "meta"]
        return str(found)


def turn_with_call(number: int, turn: int, error: bool = False) -> list[Any]:
    """Return a turn with thinking and a tool call, and the call."""
    use = {
        "type": "tool_use",
        "id": f"toolu_{number}_{turn}",
        "name": "weather",
        "input": {"city": "Bern"},
    }
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "canary-thought", "signature": "c2ln"},
        {"type": "text", "text": "canary-answer" if not error else f"canary-answer {HOSTILE}"},
        use,
    ]
    asked = attempt(number, turn, content=content, cache_read_input_tokens=100 * turn)
    return [asked, tool(number, f"toolu_{number}_{turn}", "weather", at=T0 + turn * SECOND)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with a failed session, a long one, a running one, and one on another day without a known price."""
    home = a_home(tmp_path_factory.mktemp("reports"))
    failed = [
        start(1, "unlucky", team="blue"),
        *turn_with_call(1, 1, error=True),
        attempt(1, 2, status=529),
    ]
    long = [start(2, "long", at=T0 + 100 * SECOND)]
    for turn in range(1, 201):
        long += turn_with_call(2, turn)
    record(home, [*failed, end(1, failed=True)])
    record(home, [*long, end(2, T0 + 400 * SECOND)])
    running = write_facts(
        home, [start(3, "still").start, usage_row(3, session_id=session_id(3))], close=False
    )
    record(
        home, [start(4, "later", at=T0 + 3 * DAY), attempt(4, 1, at=T0 + 3 * DAY, model="in-house")]
    )
    record(home, [end(4, T0 + 3 * DAY + SECOND)])
    with shared_store(home.path):
        yield home
    running.close()


@pytest.fixture(scope="module")
def write(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Write a report, only once for the same arguments, and return it."""

    @cache
    def written(*arguments: str) -> str:
        file = tmp_path_factory.mktemp("written") / "r.html"
        command = ["--home", str(home.path), "report", *arguments, "-o", str(file)]
        ended = CliRunner().invoke(cli, command)
        assert ended.exit_code == 0, ended.output
        return file.read_text("utf-8")

    return written


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("unlucky",), ("unlucky", "--interactive"), ("--range", "..")]
)
def test_a_report_contains_no_content(write: Write, arguments: tuple[str, ...]) -> None:
    """The report contains names, but no prompts, responses, thinking, inputs, results or error messages.

    The page states this.
    """
    page = write(*arguments)
    assert not [word for word in CONTENT_TEXTS if word in page]
    assert "unlucky" in page
    assert "contains no content" in Page(page).text


@pytest.mark.slow
def test_a_report_with_content_shows_it_as_text(write: Write) -> None:
    """Content is escaped, and a prominent note warns about it."""
    text = write("unlucky", "--with-content", "--light")
    page = Page(text)
    assert "This file contains content" in page.text
    for word in ("line 0 of session", "canary-answer", "canary-thought", "Bern"):
        assert word in page.text
    assert "<script>hacked()</script>" in page.text
    assert "<img src=x onerror=hacked()>" in page.text
    assert "{{7*7}}" in page.text
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)
    assert "the provider responded with status 529" in page.text


@pytest.mark.slow
def test_the_content_of_a_report_is_bounded(home: Home) -> None:
    """However much content there is, a light file has less than 15 MB.

    It contains the first part of the content and the number of omitted requests.
    """
    block = {"type": "text", "text": "&" * 20_000}
    messages = [{"role": "user", "content": [block] * 99} for _ in range(4)]
    asked = [
        replace(
            attempt(1, turn),
            question=Question(
                "POST", "/v1/messages", {}, json.dumps({"messages": messages[:turn]}).encode()
            ),
        )
        for turn in range(1, 5)
    ]
    result = session_content(
        Recording(session_id(1), "vast", None, None, "completed", None, None, 0, tuple(asked))
    )
    with open_store(home) as store:
        text = session_report(store, session_id(1), made_ns=0, light=True, content=result)
    assert 8_000_000 < len(text.encode()) < 15_000_000
    page = Page(text).text
    assert re.search(r"And \d+ more blocks", page)
    assert re.search(r"And 2 more requests; agentobs show", page)


NAMES = {
    "names of sessions": "canary-session",
    "agents": "canary-agent",
    "models": "canary-claude-model",
    "tools": "canary-tool",
    "hooks": "canary-hook",
    "keys of tags": "canary-key",
    "sources of permission decisions": "canary-source",
    "kinds of errors": "canary-error",
    "places in the code": "canary-place",
}
"""The kinds of names that the note lists, each with a name of this kind."""


@pytest.mark.slow
def test_the_note_lists_every_kind_of_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The note at the top lists each kind of name that the page contains.

    The values of tags are only in a report with content.
    """
    home = a_home(tmp_path)
    record(home, _session_with_canary_names())
    file, shell = tmp_path / "r.html", Shell(home.path, capsys)
    for holds in (False, True):
        result = ("--with-content",) if holds else ()
        ended = shell("report", session_id(1), *result, "-o", str(file), "--light", "--force")
        assert ended.code == 0, ended.err
        text = Page(file.read_text()).text
        top, _, rest = text.partition("If such a name is confidential")
        if not holds:
            assert [kind for kind in NAMES if kind not in top] == []
            assert [name for name in NAMES.values() if name not in text] == []
        assert ("ann@example.com" in file.read_text()) is holds
        assert ("canary-key=ann@example.com" in text) is holds
        assert bool(rest) is not holds
    shell("report", "--range", "..", "-o", str(file), "--force")
    assert "ann@example.com" not in file.read_text()


def _session_with_canary_names() -> list[Any]:
    """Return a session in which each name is a different canary text."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "canary-tool", "input": {}}
    lane, hook = Label("canary-agent"), Label("hook")
    asked = attempt(1, 1, content=[use], model="canary-claude-model")
    opening = start(1, "canary-session", T0, **{"canary-key": "ann@example.com"})
    ran = tool(1, "toolu_1", "canary-tool", at=T0 + 2 * SECOND)
    at = T0 + 2 * SECOND
    decided = permission(
        1,
        "toolu_1",
        at=at,
        source=Label("canary-source"),
        tool=Label("canary-tool"),
    )
    took = {"duration_ns": 1.0, "count": 1.0}
    hooked = Event(
        session_id(1),
        None,
        lane,
        1,
        T0,
        hook,
        Label("success"),
        took,
        labels={"hook": Label("canary-hook")},
    )
    failed = replace(
        end(1, failed=True),
        reason=Label("canary-error"),
        signature=Label("exception:canary-error@canary-place:run"),
    )
    sub = replace(attempt(1, 2), place=Place(session_id(1), lane=lane))
    return [opening, asked, ran, decided, hooked, sub, failed]


@pytest.mark.slow
def test_a_report_forbids_network_access(write: Write) -> None:
    """The page loads nothing: scripts and styles are embedded once, and the policy allows only these, by hash."""
    page = Page(write("unlucky", "--interactive"))
    for _, attrs in page.tags:
        assert not {"src", "srcset", "action", "style"} & attrs.keys()
        assert not str(attrs.get("href") or "#").startswith(("http:", "https:", "//"))
        assert not any(name.startswith("on") for name in attrs)
    assert not [
        tag for tag, attrs in page.tags if "src" in attrs or tag in ("link", "iframe", "base")
    ]
    scripts = page.scripts()
    assert [len(script) > 1_000_000 for script in scripts] == [True, False, False]
    rules = dict(rule.strip().partition(" ")[::2] for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert rules["script-src"].split() == [_digest(script) for script in scripts]
    assert "unsafe" not in rules["script-src"] + rules["style-src"]
    written = (ROOT / "docs" / "dashboards.md").read_text()
    for name in ("style-src-attr", "img-src"):
        assert f"{name} {rules[name]}" in written, "what is allowed beside is written down"
    assert _digest(page.raw["style"][0]) in rules["style-src"].split()
    assert len(page.raw["style"]) == 1


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.slow
def test_figures_are_included_twice(write: Write) -> None:
    """Each figure is included as JSON for the script and as an image for print; its table has at most 200 rows."""
    page = Page(write("long", "--interactive"))
    data = [a for t, a in page.tags if t == "script" and a.get("class") == "figure-data"]
    stills = [a for t, a in page.tags if t == "svg" and a.get("class") == "drawing"]
    assert len(data) == len(stills) >= 4
    for _, attrs in page.tags:
        assert attrs.get("class") != "figure-data" or attrs["type"] == "application/json"
    bodies = [s for s in page.raw["script"] if s.startswith("{") and '"layout"' in s]
    assert len([json.loads(body)["data"] for body in bodies]) == len(data)
    for light, most in ((False, 200), (True, LIGHT)):
        text = write("long") if light else write("long", "--interactive")
        result = re.findall(r"Data \(([\d,]+) rows?", Page(text).text)
        lengths = [part.count("<tr>") - 1 for part in re.findall(_DATA, text, re.DOTALL)]
        assert [int(count.replace(",", "")) for count in result] == lengths
        assert max(lengths) == most


_DATA = r'<details class="data">.*?</details>'


@pytest.mark.slow
def test_a_light_report_is_small_and_has_no_script(write: Write) -> None:
    """A report of 200 turns takes less than 500 kB without scripts, and less than 6 MB with scripts.

    A light report states that times are in UTC. A report is light unless it is interactive.
    """
    light = write("long")
    assert _without_time(write("still", "--light")) == _without_time(write("still"))
    page = Page(light)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert "script-src 'none'" in page.policy
    assert len(light.encode()) < 500_000
    assert len(write("long", "--interactive").encode()) < 6_000_000
    assert [attrs for tag, attrs in page.tags if tag == "svg"]
    assert "no script that could convert them to your time zone" in page.text


def _without_time(report: str) -> str:
    return re.sub(r"Generated by.*", "", report)


@pytest.mark.slow
def test_lists_are_bounded(write: Write) -> None:
    """Of 400 steps the first are listed, with the number of further steps and the command that lists them."""
    text = Page(write("long")).text
    more = re.search(
        r"And ([\d,]+) more steps; (agentobs show [0-9a-f]{32}) lists all of them", text
    )
    assert more is not None
    assert int(more[1]) == 400 - LIGHT
    assert more[2].endswith(session_id(2))
    assert re.search(r"And 100 more LLM requests; agentobs sql", text)


@pytest.mark.slow
def test_a_report_shows_outcome_and_cost(write: Write) -> None:
    """The page contains the status, the reason, failed steps, and the cost with its certainty."""
    text = Page(write("unlucky")).text
    assert "✕ failed" in text
    assert "ValueError" in text
    assert "http_error 529" in text
    assert "exact for all LLM requests" in text
    assert "team" in text
    assert "The session was still running when this file was generated" in Page(write("still")).text
    unpriced = Page(write("later")).text
    assert "unknown" in unpriced
    assert "1 LLM request without a price" in unpriced
    assert "1 calls" not in unpriced


@pytest.mark.slow
def test_a_report_begins_with_what_failed(write: Write) -> None:
    """The cause of a failure comes before all numbers, in the report of a session and in that of a range."""
    session, sessions = write("unlucky"), write("--range", "..")
    assert session.index("<h1>") < session.index('id="failure"') < session.index('class="tiles"')
    assert session.index('id="failure"') < session.index("contains no content")
    assert sessions.index('id="failed"') < sessions.index('class="tiles"')
    failed = sessions[sessions.index('id="failed"') :]
    failed = failed[: failed.index("</section>")]
    assert "unlucky" in failed
    cause = re.search(r'id="failure".*?<strong>(.+?)</strong>', session, re.DOTALL)
    assert cause is not None
    assert cause[1] in failed
    assert "story" not in failed


@pytest.mark.slow
def test_a_range_report_counts_only_its_range(write: Write) -> None:
    """A report about a range contains no sessions and costs of other days, and no content."""
    text = Page(write("--range", "..")).text
    assert re.search(r"Sessions 4 1 failed or crashed", text)
    assert "at least" in text, "one model has no price"
    assert "1 of these sessions was still running" in text
    day = Page(write("--range", "2026-09-24..2026-09-25")).text
    assert re.search(r"Sessions 1 0 failed", day)
    assert "unlucky" not in day
    assert "later" in day
    same = Page(write("--since", "2026-09-24", "--until", "2026-09-25")).text
    assert _without_time(same) == _without_time(day)
    assert "No data in this range" in Page(write("--until", "2020-01-01")).text


@pytest.mark.slow
def test_lost_records_are_shown_at_the_top(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session with lost records has a warning before its numbers, which are marked as lower bounds."""
    home = a_home(tmp_path)
    lost = end(1)
    record(home, [start(1), attempt(1, 1)])
    write_facts(home, [type(lost)(**{**_fields(lost), "dropped": 7})])
    ended = Shell(home.path, capsys)("report", "story", "--light", "-o", str(tmp_path / "r.html"))
    assert ended.code == 0, ended.err
    text = Page((tmp_path / "r.html").read_text()).text
    assert "Incomplete: 7 records were not written" in text
    assert text.index("Incomplete") < text.index("Cost")
    assert "≥" in text
    for bounds, is_told in (("2026-09-21..", True), ("..2026-09-20", False)):
        shell = Shell(home.path, capsys)
        shell("report", "--range", bounds, "--light", "-o", str(tmp_path / "all.html"), "--force")
        text = Page((tmp_path / "all.html").read_text()).text
        assert ("Records of some sessions were lost" in text) is is_told


@pytest.fixture(scope="module")
def lossy_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with a session that lost records on two days."""
    home = a_home(tmp_path_factory.mktemp("lossy"))
    record(home, [start(1), attempt(1, 1), end(1)])
    kind, why = Label("events"), Label("disk_full")
    lost = [Gap(session_id(1), at, kind, why, n) for at, n in ((T0, 5), (T0 + 3 * DAY, 7))]
    write_facts(home, lost)
    with shared_store(home.path):
        yield home


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [("..2026-09-22", 5), ("2026-09-22..", 7), ("..", 12), ("2026-09-22..2026-09-23", 0)],
)
def test_losses_are_those_of_the_range(
    lossy_home: Home,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    bounds: str,
    expected: int,
) -> None:
    """If a session lost records on two days, the report about a range contains only the losses of its days."""
    monkeypatch.setattr(html_report, "fleet_panels", lambda *_, **__: [])
    file = tmp_path / "r.html"
    ended = Shell(lossy_home.path, capsys)("report", "--range", bounds, "--light", "-o", str(file))
    assert ended.code == 0, ended.err
    text = Page(file.read_text()).text
    listed = re.search(r"Lost records (.*) Generated by", text)
    assert ("Records of some sessions were lost" in text) is (listed is not None) is bool(expected)
    assert not listed or f"events disk_full {expected} " in listed[1]


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@pytest.mark.slow
def test_a_report_about_pruned_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the content was pruned, a report with content states when, and contains the facts."""
    home = a_home(tmp_path)
    record(home, [start(1, at=T0), *turn_with_call(1, 1), end(1)])
    shell = Shell(home.path, capsys)
    shell("ingest")
    pruned = shell("prune", "--content-only", "--older-than", "1h")
    assert pruned.code == 0, pruned.err
    file = tmp_path / "r.html"
    ended = shell("report", session_id(1), "--with-content", "--light", "-o", str(file))
    assert ended.code == 0, ended.err
    text = Page(file.read_text()).text
    assert "The content was deleted on" in text
    assert "weather" in text
    assert "canary-answer" not in text


@pytest.mark.slow
def test_a_report_file_is_new_and_private(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the file exists, the command fails before any work; a new file can be read only by its owner."""
    shell, file = Shell(home.path, capsys), tmp_path / "r.html"
    file.write_text("mine")
    ended = shell("report", "still", "--light", "-o", str(file))
    assert ended.code == 1
    assert "the file exists" in ended.err
    assert file.read_text() == "mine"
    ended = shell("report", "still", "--light", "-o", str(file), "--force")
    assert ended.code == 0
    assert "without prompts and responses" in ended.out
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_only_a_regular_file_is_replaced(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even with `--force`, a pipe, a link, a directory and `-` are rejected in one sentence and stay unchanged."""
    shell, places = Shell(home.path, capsys), tmp_path / "places"
    places.mkdir()
    (places / "mine.html").write_text("mine")
    os.mkfifo(places / "pipe")
    (places / "link").symlink_to(places / "mine.html")
    (places / "lost").symlink_to(places / "nowhere")
    before = {each.name: each.lstat().st_ino for each in places.iterdir()}
    result = {"pipe": "it is a pipe", "link": "it is a link", "lost": "it is a link"}
    for name, why in result.items():
        for force, words in (((), "the file exists"), (("--force",), why)):
            ended = shell("report", "still", "--light", "-o", str(places / name), *force)
            assert (ended.code, words in ended.err) == (1, True), ended.err
            with pytest.raises(UsageError, match=words):
                write_text(places / name, "new", force=bool(force))
    ended = shell("report", "still", "--light", "-o", "-")
    assert (ended.code, "not to standard output" in ended.err) == (1, True)
    assert {each.name: each.lstat().st_ino for each in places.iterdir()} == before
    assert (places / "mine.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nobody-of-this-name",), "no session with that ID or name"),
        ((), "expected either one session or a range"),
        (("still", "--range", ".."), "expected either one session or a range"),
        (("--range", "2026-11-02..2026-11-01"), "ends before it starts"),
        (("--range", "yesterday"), "invalid range"),
        (("--range", "..", "--since", "7d"), "--range cannot be combined with --since or --until"),
        (("--range", "..", "--with-content"), "works with one session only"),
    ],
)
def test_invalid_arguments_give_one_clear_error(
    home: Home,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    """Invalid arguments give one sentence and a non-zero exit code, and no file is written."""
    ended = Shell(home.path, capsys)("report", *arguments, "-o", str(tmp_path / "r.html"))
    assert ended.code > 0
    assert expected in ended.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_missing_directory_is_an_error(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the directory does not exist, the error names it."""
    ended = Shell(home.path, capsys)("report", "still", "-o", str(tmp_path / "no" / "r.html"))
    assert ended.code == 1
    assert "cannot be written" in ended.err


@pytest.mark.slow
def test_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
    """If plotly or Jinja2 is missing, the command names the extra."""
    code = """
import sys
sys.modules["plotly"] = None
from agentobs.cli import main
try:
    main(["--home", sys.argv[1], "report", "x", "-o", sys.argv[2]])
except SystemExit as end:
    print(end.code)
"""
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "r.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == "1"
    assert install_extra("dashboards") in process.stderr
