"""A client key in a format that no redaction rule recognizes: frozen files do not contain it, and replays do not need
it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, content_path, facts_path, read, segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ReturnValue
from replay.fixture.fixture_redaction import without_secrets
from tests.provider_script import script
from tests.replay.test_normalizers import unstreamed

KEY = "corp-7Hn2-access"
OTHER = "corp-9Qk4-another"
DESK = """
import os

import agentobs
import anthropic

KEY = os.environ["DESK_KEY"]


def ask(question):
    client = agentobs.record(anthropic.Anthropic(api_key=KEY))
    messages = [{"role": "user", "content": f"{question} My account is {KEY}."}]
    return client.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=messages)


@agentobs.session(f"declared {KEY}")
def declared(question, account):
    said = ask(question).content[0].text
    agentobs.fail(f"401 for {account} at the shop")
    return {"account": account, "own": f"key {KEY}", KEY: said}


@agentobs.session("label")
def label(question, account):
    ask(question)
    agentobs.fail(KEY)


@agentobs.session("raising")
def raising(question, account):
    ask(question)
    raise type(f"Refused-{KEY}", (Exception,), {})(f"no access with {KEY}")


@agentobs.session("both")
def both(question, account):
    ask(question)
    agentobs.fail(f"refused {KEY}")
    raise type(f"Refused-{KEY}", (Exception,), {})(f"no access with {KEY}")


@agentobs.session("returns")
def returns(question, account):
    ask(question)
    return f"key {KEY}"
"""
NAMES = ["declared", "label", "raising", "both", "returns"]
CHECKED = ["declared", "returns"]
"""The sessions that `freeze` replays in each run of the tests; the generated tests replay all sessions."""
RUN = """
import contextlib, desk
for name in {names}:
    with contextlib.suppress(Exception):
        getattr(desk, name)("Refund order 7.", desk.KEY)
"""


def record(folder: Path, url: str) -> None:
    """Run the agents with the key in a separate process, and record them."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "PYTEST_"))}
    env |= {"AGENTOBS_HOME": str(folder / "home"), "PYTHONPATH": str(folder)}
    env |= {"DESK_KEY": KEY, "ANTHROPIC_BASE_URL": url}
    command = [sys.executable, "-c", RUN.format(names=NAMES)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def session_ids(folder: Path) -> dict[str, str]:
    """Return the IDs of the recorded sessions by the names of their functions."""
    home = existing_home(folder / "home")
    ids = [
        line.value()["session_id"]
        for each in segment_ids(home)
        for line in read(facts_path(home, each))
        if isinstance(line, Line) and line.kind == "session_starts"
    ]
    return dict(zip(NAMES, ids, strict=True))


def freeze(folder: Path, *arguments: str) -> str:
    """Freeze sessions with another key, and return the output."""
    # The check runs the agents in other processes, which inherit these variables.
    inherited = {"PYTHONPATH": str(folder), "DESK_KEY": OTHER}
    command = ["--home", str(folder / "home"), "freeze", *arguments]
    with contextlib.chdir(folder):
        frozen = CliRunner(env=inherited).invoke(cli, command)
    assert frozen.exit_code == 0, frozen.output
    return frozen.output


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Record agents with the key, freeze them with another key; return the folder and the output."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "desk.py").write_text(DESK)
    answers = [unstreamed(n, "Done.") for n in range(1, 6)]
    with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
        record(folder, provider.url)
    ids = session_ids(folder)
    others = [ids[name] for name in NAMES if name not in CHECKED]
    output = freeze(folder, *(ids[name] for name in CHECKED))
    return folder, output + freeze(folder, *others, "--no-check")


@pytest.mark.slow
def test_files_and_output_of_freeze_do_not_contain_the_key(desk: tuple[Path, str]) -> None:
    """The files that `freeze` writes, their names, and its output do not contain the client's key."""
    folder, output = desk
    paths = list((folder / "fixtures").rglob("*"))
    assert len([path for path in paths if path.name == "recording.jsonl"]) == len(NAMES)
    assert KEY not in output
    for path in paths:
        assert KEY.lower() not in str(path).lower().replace("_", "-")
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
    written = "".join(p.read_text() for p in paths if p.name == "recording.jsonl")
    assert "401 for [redacted:credential:1] at the shop" in written
    assert '"own": "key [redacted:credential:1]"' in written
    assert '"exception": "Refused-[redacted:credential:1]"' in written


@pytest.mark.slow
def test_the_end_of_a_session_does_not_contain_the_key(
    desk: tuple[Path, str],
) -> None:
    """Journal records that are written after the first use of the key do not contain it, including the end of the
    session.
    """
    home = existing_home(desk[0] / "home")
    seen = 0
    for each in segment_ids(home):
        for path in (facts_path(home, each), content_path(home, each)):
            for line in read(path):
                assert isinstance(line, Line)
                if line.kind in ("start", "session_starts"):
                    continue
                assert KEY not in str(line.value()), line.kind
                seen += line.kind == "end"
    assert seen == len(NAMES)


@pytest.mark.slow
def test_replays_match_with_another_key(
    warm_process: None,
    desk: tuple[Path, str],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replays that `freeze` runs and the generated tests match, both with another key and with the recorded key."""
    folder, output = desk
    assert output.count("replays: yes") == len(CHECKED), output
    pytester.syspathinsert(folder)
    for key in (OTHER, KEY):
        # `test_fixed` fails as long as the agent fails as recorded, with any key.
        chosen = ("-k", "not test_fixed", "-p", "no:cacheprovider", "-p", "no:xdist", "fixtures")
        monkeypatch.setenv("DESK_KEY", key)
        with contextlib.chdir(folder):
            done = pytester.runpytest_inprocess(*chosen)
        assert done.ret == 0, done.stdout.str()


@pytest.mark.slow
@pytest.mark.crash
def test_freeze_replays_each_session_with_another_key(desk: tuple[Path, str]) -> None:
    """The check of `freeze` matches for each session, however it ended, with another key."""
    folder, _ = desk
    output = freeze(folder, *session_ids(folder).values(), "-o", "again")
    assert output.count("replays: yes") == len(NAMES), output


@pytest.mark.slow
def test_the_key_is_masked_in_a_crashed_session(desk: tuple[Path, str]) -> None:
    """In a crashed session, the key is masked in the name, the arguments and the result if a request contains the same
    text redacted.
    """
    home = existing_home(desk[0] / "home")
    segments = segment_ids(home)
    for each in segments:
        for line in read(facts_path(home, each)):
            if isinstance(line, Line) and line.kind == "session_starts":
                session = read_session(home, line.value()["session_id"], segments)
                break
    text_with_key = f"Refund order 7. My account is {KEY}."
    crashed = replace(
        session, name=text_with_key, arguments={"question": [text_with_key]}, reason=text_with_key,
        signature=f"declared:{text_with_key}",
        exception=text_with_key, result=ReturnValue({"said": text_with_key}),
    )  # fmt: skip
    masked = without_secrets(crashed)
    assert KEY not in str(masked.arguments)
    assert KEY not in str((masked.name, masked.reason, masked.signature, masked.exception))
    assert masked.result is not None
    assert "My account is [redacted:credential:" in masked.result.value["said"]
