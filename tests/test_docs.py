"""Documents: their code runs, and the files that they mention exist."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from tests.provider_script import script, streamed, text
from tests.replay.agents import last_session

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def blocks(document: str, language: str) -> list[str]:
    found: list[str] = re.findall(
        rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL
    )
    return found


def test_the_first_example_records_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first code block of the README works unchanged, and the entry and its arguments are recorded."""
    first = blocks("README.md", "python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    variables: dict[str, Any] = {"__name__": "hello_agent"}
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up-key")
    with ServedProvider(script(streamed(text("hello"))), ServeOptions("order")) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        exec(compile(first, "README.md", "exec"), variables)
        assert variables["main"]("Say hello.") == "hello"
        assert agentobs.stop_recorder()
    session = last_session(tmp_path / "home")
    assert (session.name, session.entry) == ("hello", "hello_agent:main")
    assert session.arguments == {"prompt": "Say hello."}


def test_any_duckdb_client_opens_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's code that opens the published file with DuckDB alone works while other processes record."""
    [snippet] = [block for block in blocks("README.md", "python") if "duckdb.connect" in block]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTOBS_HOME", raising=False)
    with agentobs.session("opened"):
        pass
    agentobs.connect().close()
    with agentobs.session("still recording"):
        exec(compile(snippet, "README.md", "exec"), {})
    assert agentobs.stop_recorder()
    assert "opened" in capsys.readouterr().out


@pytest.mark.slow
def test_a_session_resumes_as_in_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's code that resumes a session works unchanged."""
    found = blocks("README.md", "python")
    [reader] = [block for block in found if "async def main" in block]
    [snippet] = [block for block in found if "async def resume" in block]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up-key")
    answers = script(streamed(text("hello")), streamed(text("again")))
    with ServedProvider(answers, ServeOptions("order")) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        variables: dict[str, Any] = {"__name__": "reader"}
        exec(compile(reader, "README.md", "exec"), variables)
        assert asyncio.run(variables["main"]("Say hello.")) == "hello"
        exec(compile(snippet, "README.md", "exec"), variables)
        assert agentobs.stop_recorder()
        first = last_session(tmp_path / "home").session_id
        assert asyncio.run(variables["resume"](first, "Again.")) == "again"
    assert agentobs.stop_recorder()
    [(parts,)] = agentobs.query("SELECT count(DISTINCT conversation_id) FROM sessions")
    assert parts == 1


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_in_documents_compiles(document: str) -> None:
    """Every Python block in the documents compiles."""
    for block in blocks(document, "python"):
        compile(block, document, "exec")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_documents_lead_to_files(document: str) -> None:
    """Every relative link in the documents leads to a file of the project."""
    text_of = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text_of):
        assert (ROOT / target).exists(), target


LOOP_ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs" / "loop.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| capability", "| ---"))
]


def test_every_scenario_of_the_loop_has_a_row() -> None:
    """The table contains every recorded scenario of the agent loop."""
    assert len(LOOP_ROWS) > 40
    scenarios = {path.name for path in (ROOT / "fixtures" / "loop").iterdir() if path.is_dir()}
    assert {row[2] for row in LOOP_ROWS if not row[2].startswith("- (")} == scenarios


@pytest.mark.parametrize("row", LOOP_ROWS, ids=lambda row: row[0][:40])
def test_a_capability_of_the_loop_is_tested(row: list[str]) -> None:
    """Each row of the table names an existing test and an existing scenario."""
    capability, test, scenario = row
    assert capability
    file, _, name = test.strip("`").partition("::")
    source = (ROOT / "tests" / "agent" / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", source, re.MULTILINE), test
    if scenario.startswith("-"):
        assert re.fullmatch(r"- \(.{10,}\)", scenario)
    else:
        assert (ROOT / "fixtures" / "loop" / scenario / "recording.jsonl").is_file()
        assert (ROOT / "fixtures" / "loop" / scenario / "events.txt").is_file()
