"""The command that packs sessions into one file for another machine: `bundle`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.records.display import printable

if TYPE_CHECKING:
    from exporters.bundles import Packed


@click.command()
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
@click.option(
    "--with-content",
    is_flag=True,
    help=(
        "Include prompts and responses, without secrets, so that the sessions can be frozen "
        "and replayed on the other machine."
    ),
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_context
def bundle(
    context: click.Context,
    sessions: tuple[str, ...],
    output: Path,
    with_content: bool,
    force: bool,
) -> None:
    """Pack sessions into one file for another machine.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Content is left out
    unless you pass --with-content.
    """
    from exporters.bundles import pack
    from replay.comparison.placeholders import without_organizations

    with open_store(context) as store, Spinner("packing"):
        session_ids = [session_of(store, each) for each in sessions]
        digest, packed = pack(
            store,
            session_ids,
            output.absolute(),
            with_content=with_content,
            find_secrets=_find_secrets,
            clean=without_organizations,
            force=force,
        )
    for each in packed:
        contents = "with content" if each.has_content else "no content"
        click.echo(f"{each.session_id}  {printable(each.name)}  {contents}")
    _warn(packed)
    click.echo(f"wrote  {output}  {output.stat().st_size:,} bytes")
    click.echo(f"digest {digest}")
    click.echo(f"next   agentobs import bundle {output.name} --digest {digest}")


def _warn(packed: list[Packed]) -> None:
    """Warn about sessions whose content is included but was not recorded for export."""
    not_opted_in = [each.session_id for each in packed if each.has_content and not each.opted_in]
    if not_opted_in:
        click.echo(
            "warning: the file includes prompts and responses of sessions that were not recorded "
            f'with content="export": {", ".join(not_opted_in)}. Secrets were redacted when they were '
            "recorded, and again now; all other user input is in the file.",
            err=True,
        )


def _find_secrets(kind: str, value: dict[str, Any]) -> Iterator[str]:
    """Search a line of content for secrets again, more thoroughly than is possible while an agent runs."""
    from agentobs.recording.vault.stream_secrets import find_in_stream
    from agentobs.recording.vault.vault import text_bytes
    from replay.fixture.fixture_redaction import possible_secrets

    place = {"tool": "tool", "world": "world", "request": "ask"}.get(kind, "answer")
    content = text_bytes(value)
    line = {place: value["content_id"], "key": "", "text": content.decode("utf-8", "replace")}
    yield from (f"{each.kind} in a {kind}" for each in possible_secrets([line]))
    if kind in ("response", "partial"):
        yield from (
            f"{each.kind} split over chunks of a response" for each in find_in_stream(content)
        )
