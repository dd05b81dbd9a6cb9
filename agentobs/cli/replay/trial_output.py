"""The output of `agentobs freeze` about the check of a fixture."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.progress_line import Spinner
from agentobs.records.display import listed, printable

if TYPE_CHECKING:
    from agentobs.records.exchanges import Recording
    from replay.freeze.conversion import Frozen
    from replay.trial.fixture_trial import Trials, Verdict
    from replay.trial.trial_worker import Outcome

COLUMNS = 80
MARGIN = 9
"""The width of the labels before the text, such as `replays: `."""

OR_FREEZE_AGAIN = "or freeze it again with --entry module:name --args JSON"
REPLAYS = "yes, 2 of 2 (1 with changed directory, date, time zone and hash seed)"


def check(
    recording: Recording,
    frozen: Frozen,
    home: str | None,
    trials: Trials,
    *,
    apply: bool,
    entry_choices: Mapping[str, str | None] | None = None,
) -> bool:
    """Replay a frozen session as a check, and print whether it replays; return whether its entry could be called.

    Args:
        recording: the session.
        frozen: the files that were written for it.
        home: the home from the command line, or None.
        trials: runs the replays of the check.
        apply: whether to add the proposed rules to the fixture and repeat the check.
        entry_choices: the command-line options that select the entry of the agent, with their values.
    """
    from agentobs.determinism.entry import is_command
    from replay.agent_code.entry_obstacles import why_not_callable
    from replay.fixture.format import load

    is_callable = False
    if is_command(load(frozen.fixture).header["entry"]):
        from agentobs.cli.replay.command_output import check_command

        is_callable = True
        with Spinner("checking whether it replays"):
            printed = _wrapped(check_command(frozen.fixture, trials.limit_s))
    elif (problem := why_not_callable(load(frozen.fixture).header)) is not None:
        printed = _wrapped([f"not tried, because {problem.reason}"])
    else:
        with Spinner("checking whether it replays"):
            verdict = trials.verdict(frozen.fixture)
            if apply and verdict.rules:
                _add_rules(frozen, verdict.rules)
                verdict = trials.verdict(frozen.fixture)
        is_callable = not _is_uncallable(verdict)
        printed = lines(verdict, _freeze_command(recording, frozen, home, entry_choices or {}))
        printed += _live_tools(recording) if is_callable else []
    click.echo("\n".join(printed))
    sys.stdout.flush()
    return is_callable


def _add_rules(frozen: Frozen, rules: Sequence[str]) -> None:
    """Add rules to the fixture."""
    from replay.fixture.fixture_folder import add_rules
    from replay.fixture.format import load

    add_rules(load(frozen.fixture), rules)
    names = f"rule{'s' * (len(rules) > 1)} {listed(rules)}"
    click.echo(f"added  the {names} to {printable(str(frozen.fixture))}")


def _freeze_command(
    recording: Recording, frozen: Frozen, home: str | None, entry_choices: Mapping[str, str | None]
) -> str:
    """Return the command that freezes a session again and adds the proposed rules."""
    from replay.fixture.format import load

    options = (
        ("--until-turn", frozen.until),
        ("--turn", load(frozen.fixture).header.get("failing_turn")),
        *entry_choices.items(),
    )
    parts = ["agentobs", *(["--home", home] if home is not None else [])]
    parts += ["freeze", recording.session_id[-8:], "-o", str(frozen.fixture.parent)]
    parts += [
        word for option, value in options if value is not None for word in (option, str(value))
    ]
    return shlex.join([*parts, "--apply"])


def _live_tools(recording: Recording) -> list[str]:
    """Return the lines that list the tools that ran for real, because their calls were not recorded."""
    from agentobs.provider.registry import calls_of
    from agentobs.records.exchanges import ModelExchange, ToolExchange

    calls: dict[str, str] = {}
    for each in recording.exchanges:
        if isinstance(each, ModelExchange) and each.answer.status == 200:
            received = calls_of(each.question.path, each.answer)
            calls |= {str(call.id): call.name for call in received}
    for each in recording.exchanges:
        if isinstance(each, ToolExchange):
            calls.pop(each.question.tool_use_id, None)
    if not calls:
        return []
    names = listed(list(dict.fromkeys(calls.values())))
    return _wrapped(
        [f"not recorded with record_tool, so a replay runs them for real: {names}"], "tools:"
    )


def _is_uncallable(verdict: Verdict) -> bool:
    """Return whether the entry could not be called even in the unchanged environment."""
    failed = verdict.failed
    return failed is not None and failed.result == "uncallable" and not verdict.changes


def lines(verdict: Verdict, apply_command: str) -> list[str]:
    """Return the verdict of a trial as lines of text.

    Args:
        verdict: the result of the replays.
        apply_command: the command that adds the proposed rules to the fixture.
    """
    if verdict.replays:
        return _wrapped([REPLAYS])
    failed = verdict.failed
    if failed is None:
        return _wrapped(["no"])
    if _is_uncallable(verdict):
        parts = [f"not tried, because {failed.text}", failed.remedy]
        return _wrapped(parts if "--entry" in failed.remedy else [*parts, OR_FREEZE_AGAIN])
    parts = [_first(verdict, failed), *(f"  {line}" for line in failed.difference_lines)]
    if failed.why:
        parts.append(failed.why + (f" ({failed.site})" if failed.site else ""))
    return _wrapped([*parts, *_fixes(verdict, failed, apply_command)])


def _first(verdict: Verdict, failed: Outcome) -> str:
    """Return the first line: the failure, and the change that causes it."""
    changes = list(verdict.changes)
    is_request = failed.result == "differs"
    if changes == ["working directory"]:
        if failed.missing_file:
            return f"no, only from this directory: {failed.missing_file}"
        if is_request:
            return f"no, only from this directory: {failed.text} depends on the directory"
        return f"no, only from this directory: in another directory, {_with_site(failed)}"
    if is_request:
        cause = f"depends on the {listed(changes)}" if changes else "differs from the recording"
        return f"no, because {failed.text} {cause}"
    condition = f"with another {listed(changes)}, " if changes else ""
    return f"no, because {condition}{_with_site(failed)}"


def _with_site(failed: Outcome) -> str:
    """Return the failure, with the line of the agent unless the reason already names it."""
    return f"{failed.text}, at {failed.site}" if failed.site and not failed.why else failed.text


def _fixes(verdict: Verdict, failed: Outcome, apply_command: str) -> list[str]:
    """Return the lines that explain how to fix the failure."""
    changes = list(verdict.changes)
    if verdict.rules:
        rules = f"rule{'s' * (len(verdict.rules) > 1)} {listed(verdict.rules)}"
        if verdict.rules_suffice:
            them = "them" if len(verdict.rules) > 1 else "it"
            return [
                f"the {rules} would hide this difference; to apply {them}:",
                f"  {apply_command}",
            ]
        remaining = f"the {rules} would hide other differences, but not this one"
        return [remaining, *_advice(changes, failed)]
    return _advice(changes, failed)


def _advice(changes: Sequence[str], failed: Outcome) -> list[str]:
    if failed.remedy:
        return [failed.remedy]
    if changes == ["working directory"]:
        return [
            "run the tests from this directory, or open files relative to the module: "
            "Path(__file__).parent / ..."
        ]
    if changes == ["hash seed"]:
        return ["sort the elements of sets, because their order differs in each process"]
    if changes and set(changes) <= {"date", "time zone"}:
        return [
            'no rule hides this difference. Take the time from the recording: agentobs.session(..., patch=("time",)), '
            "or agentobs.world_here().now() in the agent. Then record the session again"
        ]
    return []


def _wrapped(parts: Sequence[str], label: str = "replays:") -> list[str]:
    """Wrap parts to `COLUMNS`, with a label before the first line; indented parts are not wrapped."""
    wrapped: list[str] = []
    for part in parts:
        shown = printable(part)
        is_indented = part.startswith("  ")
        wrapped += [shown] if is_indented else _wrap(shown)
    return [f"{'' if at else label:<{MARGIN}}{line}" for at, line in enumerate(wrapped)]


def _wrap(text: str) -> list[str]:
    width = COLUMNS - MARGIN
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
