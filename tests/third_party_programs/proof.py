"""The proof of one program: what was recorded is what the provider saw, and the replays of its command are exact."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import agentobs
from agentobs.recording.journal.home import open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange
from replay import CommandReplay, Fixture, load, run_command
from tests.replay.raw_provider import raw_provider
from tests.third_party_programs.programs import PROGRAMS, Program
from tests.third_party_programs.provider import FILES, FINAL_TEXT, Provider
from tests.third_party_programs.tunnel import tunnel_to

REQUESTS_MAX = 50
"""The number of requests that the provider answers before it stops a program that does not end."""
KEY = "sk-ant-api03-a-key-that-must-never-be-written-0001"
OTHER_TEXT = "It snows in Narvik.\n"
SECONDS_MAX = 300.0
TOKENS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
}
"""The columns of the store for the classes of tokens of the provider."""


@dataclass(frozen=True)
class Proof:
    """The results for one program."""

    title: str
    requests: int
    turns: int
    tool_calls: int
    tokens: int
    exact: int
    """The number of replays in which all requests were exact and the output was the recorded one."""
    replays: int
    prompt: str
    """Where a replay with another task differs: the request, the path in it, and the kind of difference."""
    file: str
    """Where a replay with another text in a file differs."""
    problems: list[str] = field(default_factory=list)


class Folders:
    """The directories of one run: a working directory with the files, and a fresh home and configuration."""

    def __init__(self, folder: Path, earlier: Folders | None = None) -> None:
        """Create the directories.

        Args:
            folder: where to create them.
            earlier: the run whose configuration, with its sessions, is copied; None means an empty configuration.
        """
        self.folder = folder
        self.work, self.configuration = folder / "work", folder / "configuration"
        for name in ("work", "home", "temporary"):
            (folder / name).mkdir(parents=True)
        for name, text in FILES.items():
            (self.work / name).write_text(text)
        if earlier is None:
            self.configuration.mkdir()
            return
        shutil.copytree(earlier.configuration, self.configuration)
        sessions = self.configuration / "projects"
        (sessions / _slug(earlier.work)).rename(sessions / _slug(self.work))

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the program."""
        return {
            "HOME": str(self.folder / "home"),
            "CLAUDE_CONFIG_DIR": str(self.configuration),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "TMPDIR": str(self.folder / "temporary"),
            "DSPY_CACHEDIR": str(self.folder / "home"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # Claude Code does not skip permissions as root outside of a container.
            "IS_SANDBOX": "1",
        }


def _slug(directory: Path) -> str:
    """Return the name of the folder in which Claude Code keeps the sessions of a directory."""
    return re.sub(r"[^A-Za-z0-9]", "-", str(directory.resolve()))


class Prover:
    """Records and replays one program."""

    def __init__(self, name: str, folder: Path) -> None:
        """Install the program if necessary.

        Args:
            name: the key of the program in `PROGRAMS`.
            folder: an empty folder.
        """
        self.name = name
        self.program: Program = PROGRAMS[name]
        self.folder = folder.resolve()
        self.home = self.folder / "agentobs"
        self.command = self.program.command()
        self.problems: list[str] = []
        self.output = ""
        """The recorded standard output."""
        self.earlier: Folders | None = None
        """The earlier run that the recorded run resumes."""

    def prove(self, replays: int) -> Proof:
        """Record the program, replay it a number of times unchanged, and with each change."""
        recorded = Folders(self.folder / "recorded")
        if self.program.first is not None:
            first = PROGRAMS[self.program.first]
            self._record("first", (*first.command(), first.prompt), recorded)
            self.earlier = Folders(self.folder / "earlier", recorded)
        provider = self._record(self.name, (*self.command, self.program.prompt), recorded)
        fixture = self._freeze()
        runs = [self._replay(fixture, f"replay{number}") for number in range(replays)]
        for ran in runs:
            self.problems += [f"replay: {each}" for each in self._differences(ran)]
        return Proof(
            title=self.program.title,
            requests=len(provider.bodies),
            turns=provider.turns,
            tool_calls=provider.tool_calls,
            tokens=provider.tokens.total(),
            exact=sum(not self._differences(ran) for ran in runs),
            replays=replays,
            prompt=self._changed_prompt(fixture),
            file=self._changed_file(fixture),
            problems=self.problems,
        )

    def _record(self, name: str, command: Sequence[str], folders: Folders) -> Provider:
        """Record a session, and compare it with what the provider saw."""
        provider = Provider()
        options = ("--name", name, *self.program.record_options)
        with raw_provider([provider.play] * REQUESTS_MAX) as raw:
            address = {"ANTHROPIC_BASE_URL": raw.url}
            if self.program.is_hard_coded:
                with tunnel_to(raw.url, self.folder) as variables:
                    ended = self._agentobs(
                        "record", *options, "--", *command, folders=folders, **variables
                    )
            else:
                ended = self._agentobs(
                    "record", *options, "--", *command, folders=folders, **address
                )
        # Claude Code also prints its response to each report of a sub-agent in the background.
        if ended.returncode or {*ended.stdout.split("\n")} - {""} != {FINAL_TEXT}:
            raise RuntimeError(
                f"{name}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
            )
        self._compare(name, provider)
        self.output = ended.stdout
        return provider

    def _agentobs(
        self, *arguments: str, folders: Folders, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            **folders.variables(),
            "AGENTOBS_HOME": str(self.home),
            "ANTHROPIC_API_KEY": KEY,
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "agentobs", *arguments],
            cwd=folders.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )

    def _compare(self, name: str, provider: Provider) -> None:
        """Compare the bodies, numbers and tokens of a session with what the provider received and sent."""
        query = "SELECT session_id, attempts, turns, tool_calls, status, relation FROM sessions"
        [(session, requests, turns, calls, status, relation)] = agentobs.query(
            f"{query} WHERE name = '{name}'", home=self.home
        )
        is_resumed = self.program.first is not None and name == self.name
        self._equal("relation to the earlier session", relation, "resume" if is_resumed else None)
        home = open_home(str(self.home))
        recording = read_session(home, session, segment_ids(home))
        exchanges = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
        self._equal("requests", requests, len(provider.bodies))
        self._equal("turns", turns, provider.turns)
        self._equal("tool calls", calls, provider.tool_calls)
        self._equal("status", status, "completed")
        received = Counter(each.question.body for each in exchanges)
        if received != Counter(provider.bodies):
            self.problems.append("the recorded requests are not those that the provider received")
        sent = Counter(each.answer.body for each in exchanges if each.answer is not None)
        if sent != Counter(provider.responses):
            self.problems.append("the recorded responses are not those that the provider sent")
        columns = ", ".join(TOKENS.values())
        [(certainty, *tokens)] = agentobs.query(
            f"SELECT cost_status, {columns} FROM cost_by_session WHERE session_id = '{session}'",
            home=self.home,
        )
        self._equal("certainty of the cost", certainty, "exact")
        for (kind, _), count in zip(TOKENS.items(), tokens, strict=True):
            self._equal(kind, int(count), provider.tokens[kind])

    def _equal(self, what: str, recorded: object, counted: object) -> None:
        if recorded != counted:
            self.problems.append(f"{what}: recorded {recorded}, the provider counted {counted}")

    def _freeze(self) -> Fixture:
        output = self.folder / "fixture"
        arguments = ("freeze", self.name, "--no-check", "--output", str(output))
        ended = self._agentobs(*arguments, folders=Folders(self.folder / "frozen"))
        if ended.returncode:
            raise RuntimeError(f"freeze: {ended.stderr}")
        return load(output / "recording.jsonl")

    def _replay(
        self,
        fixture: Fixture,
        name: str,
        command: Sequence[str] | None = None,
        files: dict[str, str] | None = None,
    ) -> CommandReplay:
        """Run the command in separate directories, without the provider."""
        folders = Folders(self.folder / name, self.earlier)
        for file, text in (files or {}).items():
            (folders.work / file).write_text(text)
        return run_command(
            fixture,
            command,
            cwd=folders.work,
            env=folders.variables(),
            timeout=SECONDS_MAX,
            # Claude Code looks for the resumed session by the directory.
            in_place=self.earlier is not None,
        )

    def _differences(self, ran: CommandReplay) -> list[str]:
        """Return in what an unchanged replay differs from the recording."""
        found = ran.problems()
        if not found and ran.stdout != self.output:
            found = [f"the output was {ran.stdout!r}"]
        return found

    def _changed_prompt(self, fixture: Fixture) -> str:
        command = (*self.command, self.program.other_prompt)
        ran = self._replay(fixture, "other_prompt", command)
        return self._divergence(fixture, ran, self.program.prompt, "miss")

    def _changed_file(self, fixture: Fixture) -> str:
        file = self.program.changed_file
        ran = self._replay(fixture, "other_file", files={file: OTHER_TEXT})
        return self._divergence(fixture, ran, FILES[file].strip(), "drift")

    def _divergence(self, fixture: Fixture, ran: CommandReplay, changed: str, kind: str) -> str:
        """Return the first difference; it must be in the first recorded request that contains the changed text."""
        expected = next(
            each.number
            for each in fixture.requests
            if changed.encode() in fixture.body(each.number)
        )
        if not ran.verdict.notable:
            self.problems.append(f"a change of {changed!r} was not noticed")
            return "no divergence"
        first = ran.verdict.notable[0]
        if (first.request, first.kind) != (expected, kind):
            self.problems.append(
                f"a change of {changed!r} gave {first.line()!r}, expected was a {kind} at request {expected}"
            )
        return f"request {first.request}, `{first.first}`: {first.kind}"
