"""Commands on causes: `why`, `blame`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.cli.terminal.tables import show_table
from agentobs.errors import UsageError
from agentobs.records.display import printable
from agentobs.records.whole_numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentobs.store.analysis.blame import BlamedLine
    from agentobs.store.analysis.cause_texts import CauseTexts, ShownCause
    from agentobs.store.analysis.effect_causes import CauseGraph, SessionCauses
    from agentobs.store.port import Store

LISTED = 1000
"""The maximum number of lines of a file that `blame` prints without --lines. Our choice."""


@click.command()
@click.argument("session")
@click.option(
    "--file",
    "path",
    metavar="PATH",
    help="Why this file was changed, with one cause for each change.",
)
@click.option(
    "--command", "number", type=int, metavar="N", help="Why command N ran, and what it changed."
)
@click.option(
    "--turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="Why turn N was requested, and what it caused.",
)
@click.option(
    "--line",
    metavar="PATH:LINE",
    help="Show why a line is in the file. Line numbers are those at the end of the session.",
)
@click.option("--lane", default="main", show_default=True, help="The lane of the turn.")
@click.option(
    "--content",
    is_flag=True,
    help="Also show prompts, inputs, arguments and changed lines. May show user input.",
)
@click.option("--json", "as_json", is_flag=True, help="Print nodes and edges as JSON.")
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the chain as an SVG file; without paths and titles unless --content is given.",
)
@click.pass_context
def why(
    context: click.Context,
    session: str,
    path: str | None,
    number: int | None,
    turn: int | None,
    line: str | None,
    lane: str,
    content: bool,
    as_json: bool,
    svg: Path | None,
) -> None:
    """Show the causes of a changed file, a command, a turn or a line.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Without an option,
    the commands and the changed files of the session are listed.

    Each step shows how its cause is known: `recorded`, or `inferred` with the rule; see docs/causes.md.
    """
    from agentobs.store.analysis.cause_texts import CauseTexts
    from agentobs.store.analysis.effect_causes import SessionCauses

    chosen = [each for each in (path, number, turn, line) if each is not None]
    if len(chosen) > 1:
        raise UsageError(
            "--file, --command, --turn and --line exclude each other",
            where="why",
            todo="Pass one of them",
        )
    with open_store(context) as store:
        session_id = session_of(store, session)
        causes, texts = SessionCauses(store, session_id), CauseTexts(store, session_id)
        if not chosen:
            if svg is not None or as_json:
                raise UsageError(
                    "--json and --svg need a step",
                    where="why",
                    todo="Pass --file, --command, --turn or --line",
                )
            _list_effects(causes, texts)
            return
        note = ""
        if path is not None:
            graph = causes.of_path(_changed_path(store, causes, path))
        elif number is not None:
            graph = causes.of_command(number)
        elif turn is not None:
            graph = causes.of_turn(turn, lane)
        else:
            assert line is not None
            graph, note = _of_line(store, causes, line)
        shown = texts.shown(graph)
        if as_json:
            click.echo(
                json.dumps(_json(graph, shown, texts if content else None), ensure_ascii=False)
            )
        else:
            _print(graph, shown, texts if content else None, note)
        if svg is not None:
            _write_svg(svg, texts.shown(graph, content=content), graph)


def _changed_path(store: Store, causes: SessionCauses, path: str) -> str:
    """Return the digest of a changed path, given the path in the workspace or in the working directory."""
    from agentobs.effects.workspaces.state_facts import path_text
    from agentobs.records.labels import digest_label

    known = {each for row in causes.changes for each in (row["path"], row["previous_path"])}
    wanted = _relative_path(store, causes, path) if causes.changes else [path]
    digests = [str(digest_label(path_text(each), store.home.key())) for each in wanted]
    return next((each for each in digests if each in known), digests[0])


def _relative_path(store: Store, causes: SessionCauses, path: str) -> list[str]:
    """Return the paths in the workspace that a path of the user may denote.

    Raises:
        UsageError: an absolute path is outside of the workspace.
    """
    from agentobs.effects.workspaces.shadow_git import existing_shadow

    try:
        root: Path | None = existing_shadow(store.home, str(causes.changes[0]["workspace_id"])).root
    except UsageError:
        root = None  # pruned: the texts of the facts may still be known
    here = os.path.normpath(Path.cwd() / path)
    found = [os.path.normpath(path)]
    for base in (root, root.resolve()) if root is not None else ():
        if here.startswith(f"{base}/"):
            found.append(here[len(str(base)) + 1 :])
    if Path(path).is_absolute() and root is not None and len(found) == 1:
        raise UsageError(
            "this path is not in the workspace of the session",
            where=printable(path),
            todo=f"Name a path in {root}",
        )
    return [*found[1:], found[0], path]


def _of_line(store: Store, causes: SessionCauses, line: str) -> tuple[CauseGraph, str]:
    """Return the causes of a line of a file, as the session left it, and a note about its text."""
    from agentobs.records.labels import digest_label
    from agentobs.store.analysis.blame import blame_session

    path, colon, digits = line.rpartition(":")
    number = whole_number(digits)
    if not colon or not path or not number:
        raise UsageError(
            f"expected PATH:LINE, got {printable(line)!r}",
            where="--line",
            todo="For example src/a.py:12",
        )
    names = _relative_path(store, causes, path) if causes.changes else [path]
    found = blame_session(store, causes.session_id, names, number)
    note = f"{printable(found.path)}:{found.number}  {printable(found.text)}"
    digest = digest_label(found.path, store.home.key())
    row = next(
        (each for each in causes.changes if (each["state"], each["path"]) == (found.state, digest)),
        None,
    )
    if found.session_id != causes.session_id or row is None:
        raise UsageError(
            f"line {found.number} was not written by this session: {found.origin}",
            where=printable(found.path),
            todo="`agentobs blame` shows the origins of all lines over all sessions",
        )
    return causes.graph([f"file_change:{row['number']}"]), note


def _list_effects(causes: SessionCauses, texts: CauseTexts) -> None:
    effects = [*causes.commands, *causes.file_changes]
    if not effects:
        from agentobs.store.analysis.effect_causes import SWITCHES

        click.echo(f"no commands and no changes of files were recorded; switch them on: {SWITCHES}")
        return
    lines = {
        each.node.node_id: each for each in texts.shown(causes.graph([e.node_id for e in effects]))
    }
    rows = []
    for each in effects:
        shown = lines[each.node_id]
        call = causes.call_of(each.node_id)
        made = (
            f"{lines[call.node_id].name}, turn {call.turn} of {texts.agent(str(call.lane))}"
            if call is not None
            else "unknown"
        )
        rows.append(
            (
                shown.kind,
                printable(shown.name),
                shown.detail,
                printable(made),
                shown.evidence or "-",
            )
        )
    show_table(["effect", "name", "outcome", "tool call", "evidence"], rows)


def _print(
    graph: CauseGraph, shown: Sequence[ShownCause], texts: CauseTexts | None, note: str
) -> None:
    if note:
        click.echo(note)
    for each in shown:
        indent = "  " * each.depth
        mark = f"  [{each.evidence}]" if each.evidence else ""
        star = "* " if each.node.node_id in graph.wanted else "  "
        click.echo(f"{star}{indent}{printable(each.line)}{mark}")
        for line in texts.content(each.node) if texts is not None and not each.is_result else ():
            click.echo(f"    {indent}| {printable(line.replace(chr(9), '    '))}")


def _json(
    graph: CauseGraph, shown: Sequence[ShownCause], texts: CauseTexts | None
) -> dict[str, Any]:
    """Return a graph as JSON; with `texts`, the nodes have their content."""
    return {
        "session_id": graph.session_id,
        "nodes": [
            {
                "id": each.node.node_id,
                "kind": each.node.kind,
                "name": each.name.strip('"'),
                "detail": each.detail,
                "lane": each.node.lane,
                "turn": each.node.turn,
                "at_ns": each.node.at_ns,
                "is_wanted": each.node.node_id in graph.wanted,
                **({"content": texts.content(each.node)} if texts is not None else {}),
            }
            for each in {each.node.node_id: each for each in shown}.values()
        ],
        "edges": [
            {"source": each.source, "target": each.target, "certainty": each.certainty, "rule": each.rule}
            for each in graph.edges
        ],
    }  # fmt: skip


def _write_svg(path: Path, shown: Sequence[ShownCause], graph: CauseGraph) -> None:
    from dashboards.panels.cause_drawing import cause_svg

    try:
        path.write_text(cause_svg(shown, graph), "utf-8")
    except OSError as error:
        raise UsageError(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            todo="Choose another path",
        ) from error
    click.echo(f"wrote {printable(str(path))}", err=True)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--lines", metavar="A,B", help="Only lines A to B, from 1.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line of the file."
)
@click.pass_context
def blame(context: click.Context, path: Path, lines: str | None, as_json: bool) -> None:
    """Show which session, turn and prompt wrote each line of a file, as it is now.

    PATH is a text file in a directory whose files were recorded with `agentobs record --effects files`. A line that was
    written before the first session, between sessions, or after the last one is not attributed.
    """
    from agentobs.store.analysis.blame import blame_file

    first, last = _range(lines)
    with open_store(context) as store:
        found = blame_file(store, path, first, last if lines is not None else LISTED)
    if as_json:
        for each in found.lines:
            click.echo(json.dumps(_line_json(each), ensure_ascii=False))
    else:
        _print_blame(found.lines)
    if lines is None and found.total > LISTED:
        click.echo(
            f"{LISTED:,} of {found.total:,} lines are shown; choose others with --lines {LISTED + 1},{2 * LISTED}",
            err=True,
        )


def _range(lines: str | None) -> tuple[int, int]:
    if lines is None:
        return 1, LISTED
    first, comma, last = lines.partition(",")
    start, end = whole_number(first), whole_number(last)
    if not comma or not start or not end or start > end:
        raise UsageError(
            f"expected A,B, got {printable(lines)!r}",
            where="--lines",
            todo="For example --lines 10,20",
        )
    return start, end


def _line_json(line: BlamedLine) -> dict[str, Any]:
    return {
        "line": line.number,
        "text": line.text,
        "session_id": line.session_id,
        "lane": line.lane,
        "turn": line.turn,
        "tool": line.tool,
        "tool_use_id": line.tool_use_id,
        "certainty": line.certainty,
        "rule": line.rule,
        "prompt": line.title or None,
        "origin": line.origin,
        "at_ns": line.at_ns,
        "path": line.path,
    }


def _print_blame(lines: Sequence[BlamedLine]) -> None:
    width = len(str(lines[-1].number)) if lines else 1
    origins = [_origin(each) for each in lines]
    margin = min(max((len(each) for each in origins), default=0), 70)
    previous = ""
    for each, origin in zip(lines, origins, strict=True):
        shown = "" if origin == previous else origin[:margin]
        previous = origin
        text = printable(each.text.replace("\t", "    "))
        click.echo(f"{shown:<{margin}}  {each.number:>{width}}  {text}".rstrip())


def _origin(line: BlamedLine) -> str:
    if line.session_id is None:
        return line.origin
    place = f"turn {line.turn}" if line.turn is not None else "unknown turn"
    if line.lane not in (None, "main"):
        place += f" of {line.lane}"
    title = f'"{printable(line.title)[:40]}"' if line.title else ""
    return " ".join(
        each for each in (line.session_id[-8:], place, line.tool or "unknown call", title) if each
    )


__all__ = ["blame", "why"]
