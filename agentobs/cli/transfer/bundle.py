"""The command that puts sessions into one file for another machine: bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.records.display import printable

if TYPE_CHECKING:
    from exporters.bundles import Packed


@click.command(help="Put sessions into one file that another machine imports.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
@click.option(
    "--with-content",
    is_flag=True,
    help="With what was said, without its secrets: the sessions can then be frozen and replayed there.",
)
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@click.pass_context
def bundle(
    context: click.Context,
    sessions: tuple[str, ...],
    output: Path,
    with_content: bool,
    force: bool,
) -> None:
    """Bundle SESSIONS: ids, ends of them, or names. What was said stays here, but with --with-content."""
    from agentobs.recording.journal.home import existing_home
    from exporters.bundles import pack
    from replay.comparison.placeholders import without_organisations

    home = existing_home(home_option(context))
    with open_store(context) as connection:
        session_ids = [session_of(context, connection, each) for each in sessions]
        digest, packed = pack(
            home,
            connection,
            session_ids,
            output.absolute(),
            with_content=with_content,
            look=_look,
            clean=without_organisations,
            force=force,
        )
    for each in packed:
        said = "with content" if each.has_content else "no content"
        click.echo(f"{each.session_id}  {printable(each.name)}  {said}")
    _warn(packed)
    click.echo(f"wrote  {output}  {output.stat().st_size:,} bytes")
    click.echo(f"digest {digest}")
    click.echo(f"next   agentobs import bundle {output.name} --digest {digest}")


def _warn(packed: list[Packed]) -> None:
    """Say which sessions had not opted in that what was said in them goes along."""
    unasked = [each.session_id for each in packed if each.has_content and not each.opted_in]
    if unasked:
        click.echo(
            "warning: what was said goes along, and these sessions had not opted in to that "
            f'(content="export"): {", ".join(unasked)}. Secrets were taken out when it was recorded, and looked for '
            "once more; all else that users typed is in the file.",
            err=True,
        )


def _look(kind: str, value: dict[str, Any]) -> Iterator[str]:
    """Look once more for secrets in a line of content, deeper than there is time for while an agent runs."""
    from agentobs.recording.vault.stream_secrets import find_in_stream
    from agentobs.recording.vault.vault import text_bytes
    from replay.fixture.fixture_redaction import left

    place = {"tool": "tool", "world": "world", "request": "ask"}.get(kind, "answer")
    whole = text_bytes(value)
    line = {place: value["content_id"], "key": "", "text": whole.decode("utf-8", "replace")}
    yield from (f"{each.kind} in a {kind}" for each in left([line]))
    if kind in ("response", "partial"):
        yield from (f"{each.kind} in pieces of an answer" for each in find_in_stream(whole))
