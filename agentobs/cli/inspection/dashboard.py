"""The command that shows recordings in a browser, live: `dashboard`."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from html import escape
from pathlib import Path

import click

from agentobs import world
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.optional_packages import needed_packages
from agentobs.errors import UsageError
from agentobs.records.display import printable

PASSWORD = "AGENTOBS_DASHBOARD_PASSWORD"


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on. [default: 8787, or the next free port]",
)
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in your browser.")
@click.option("--bind", metavar="ADDRESS", help="Address to listen on. [default: 127.0.0.1]")
@click.option(
    "--allow-remote",
    "remote",
    multiple=True,
    metavar="HOST",
    help=(
        "Let other machines connect under this name or address. Requires a password and TLS. "
        "May be repeated."
    ),
)
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=(
        "With --allow-remote: a file that contains the password on its first line. [default: "
        f"{PASSWORD}, or a prompt]"
    ),
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TLS certificate, in PEM format.",
)
@click.option(
    "--tls-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Private key of the TLS certificate, in PEM format, without a passphrase.",
)
@click.option(
    "--fixtures",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("fixtures"),
    show_default=True,
    help="The folder into which the button Freeze of a session page writes.",
)
@click.option(
    "--loopback-address",
    is_flag=True,
    help="Print an address with 127.0.0.1, for browsers that cannot resolve names under "
    "localhost (older Safari). The browser then also sends the cookie to servers on "
    "other ports of this machine, and they could use it to read the recordings.",
)
@click.pass_context
def dashboard(
    context: click.Context,
    port: int | None,
    opens: bool,
    bind: str | None,
    remote: tuple[str, ...],
    password_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    fixtures: Path,
    loopback_address: bool,
) -> None:
    """Show recordings in a browser, live.

    Serves the dashboard until Ctrl-C. The printed URL can be used once; then another one is printed.
    """
    from agentobs.recording.journal.home import existing_home

    if password_file and not remote:
        raise UsageError(
            "requires --allow-remote", where="--password-file", todo="Pass --allow-remote NAME"
        )
    home = existing_home(home_option(context))
    with needed_packages("the dashboard", "dashboards"):
        from dashboards.app import server
    from agentobs.cli.inspection.dashboard_commands import dashboard_commands
    from agentobs.cli.inspection.diff import comparison_of

    password = _password(password_file) if remote else None
    options = server.DashboardOptions(
        bind, port, remote, password, tls_cert, tls_key, loopback_address=loopback_address
    )
    bound = server.bind(options)

    def started(_: Callable[[], None]) -> None:
        click.echo(f"Recordings in {home.path}")
        click.echo(f"Open {bound.address}")
        click.echo("Press Ctrl-C to stop.")
        if opens:
            threading.Thread(target=_open, args=(bound.address, folder), daemon=True).start()

    def opened() -> None:
        # The browser must get its response even if the terminal is closed. What was not written would be written, and
        # fail again, when the process ends.
        try:
            click.echo(f"The dashboard was opened. For another browser: {bound.address}")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    with tempfile.TemporaryDirectory(prefix="agentobs-") as folder:
        server.serve(
            bound,
            home,
            compare=comparison_of,
            commands=dashboard_commands(home.path, fixtures),
            started=started,
            opened=opened,
        )


def _password(file: Path | None) -> str:
    """Return the password. It is never an argument, because all users of a machine can read the command line."""
    if password := world.pop_environ(PASSWORD):
        return password
    if file:
        try:
            lines = file.read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(
                "expected UTF-8 text", where=f"--password-file {printable(str(file))}"
            ) from error
        return lines[0] if lines else ""
    if sys.stdin.isatty():
        entered: str = click.prompt(
            "Password of the dashboard", hide_input=True, confirmation_prompt=True
        )
        return entered
    return ""


def _open(address: str, folder: str) -> None:
    """Open the address in a browser through a private file, because other users can read the arguments of a process."""
    path = Path(folder) / "open.html"
    path.touch(0o600)
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(address)}">'
        f'<a href="{escape(address)}">Open the dashboard</a>\n',
        "utf-8",
    )
    if not webbrowser.open(path.as_uri()):
        click.echo("No browser was found. Open the address manually.", err=True)
