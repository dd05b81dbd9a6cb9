"""The commands that record programs through a proxy: `record` and `proxy`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs import world
from agentobs.cli.terminal.aws_option import aws_signer, sign_aws_option
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.optional_packages import needed_packages
from agentobs.errors import UsageError, error_kind
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.collector.telemetry_collector import Collector
    from agentobs.proxy.recorded_sessions import TurnCounter
    from agentobs.proxy.recording_proxy import Proxy
    from agentobs.recording.journal.home import Home
    from agentobs.recording.session import Session

SECRET = "AGENTOBS_PROXY_SECRET"
FLUSH_SECONDS = 5.0
"""The longest wait for the last records at the end. Our choice."""
IDLE_MINUTES = 30
"""The default time after which a session of `agentobs proxy` without requests ends. Our choice."""

_content = click.option(
    "--content",
    type=click.Choice(["off", "vault", "export"]),
    help="Where to keep prompts and responses: `off`, `vault` (local recording), or `export` "
    "(also sent with spans). Default: AGENTOBS_CONTENT, else vault.",
)
_variables = click.option(
    "--var",
    "extra",
    multiple=True,
    metavar="NAME[=URL]",
    help="Another environment variable from which the program reads its base URL; with =URL if "
    "the base URL is not the provider's. May be repeated.",
)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", help="Name of the session. Default: the name of the program.")
@_content
@_variables
@click.option(
    "--node",
    is_flag=True,
    help="Also redirect the requests of Node.js programs that read no base URL from their environment.",
)
@click.option(
    "--telemetry",
    "receives_telemetry",
    is_flag=True,
    help="Also receive the telemetry of Claude Code, and compare it with the recorded requests.",
)
@click.option(
    "--effects",
    metavar="LIST",
    default="",
    help="Also observe effects of the command, separated by commas: `commands`, `mcp`, `files`, or "
    "`all`. `files` stores the content of files in the home, without redaction. Default: none.",
)
@sign_aws_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record(
    context: click.Context,
    name: str | None,
    content: Any,
    extra: tuple[str, ...],
    node: bool,
    receives_telemetry: bool,
    effects: str,
    signs_aws: bool,
    command: tuple[str, ...],
) -> None:
    """Run a command and record its requests to the provider.

    Write `agentobs record -- COMMAND ARGUMENTS...`. A proxy in front of the provider records the requests of COMMAND.
    The command keeps its terminal, input, output, signals and exit code. At its end, one line on standard error names
    the session, its turns and its cost.
    """
    with needed_packages("the proxy", "proxy"):
        from agentobs.proxy import client_variables, recorded_sessions
        from agentobs.proxy import command as commands
        from agentobs.proxy.forwarding import SIGNED_FOR_PROXY
        from agentobs.proxy.node_redirection import REDIRECTED, node_routes, node_variables
        from agentobs.proxy.recording_proxy import Proxy
    from agentobs.effects.observation import Scope
    from agentobs.effects.switches import effect_names, observation
    from agentobs.effects.workspaces.shadow_git import DIRECTORY
    from agentobs.recording.options import Options, content_mode
    from agentobs.recording.session import stop_recorder
    from agentobs.recording.wire.transport import PROXY_VARIABLE
    from agentobs.runtime import replaced

    environment = dict(os.environ)
    names_of_effects = effect_names(effects)
    observers = observation(names_of_effects)
    collector = _telemetry_receiver(environment) if receives_telemetry else None
    try:
        commands.check(command, environment)
    except commands.CommandError as error:
        _exit_with(error)
    variables = [client_variables.extra_variable(each) for each in extra]
    sign = aws_signer(is_wanted=signs_aws)
    found = client_variables.upstreams(environment, variables, redirects=node, signs_aws=signs_aws)
    turns = recorded_sessions.TurnCounter()
    world.hold_clock()  # until the process ends, because effects come before the first session
    started_ns = world.now()
    home = _start(home_option(context), content, turns)
    names = [each.name for each in variables]
    sessions = recorded_sessions.client_sessions(
        home,
        name or Path(command[0]).name,
        recorded_sessions.command_entry(command, environment, names, redirects_node=node),
        content=content,
    )
    with commands.SignalsPassedOn() as signals:
        # The callers of requests are in the command, not in this process.
        with (
            replaced(identifies_callers=False),
            Proxy(found, sessions, environment=environment, sign=sign) as proxy,
            collector or contextlib.nullcontext(),
        ):
            signals.count_requests = lambda: proxy.counts.recorded
            environment |= proxy.variables | client_variables.without_proxy(environment)
            environment[PROXY_VARIABLE] = proxy.url
            if node:
                routes = node_routes(found, lambda each: f"{proxy.url}/{REDIRECTED}{each.route}")
                environment |= node_variables(environment, routes)
            program = commands.program(command, environment)
            keeps = content_mode(content, Options(content=content)) != "off"
            started = list(command)
            here, place = Path.cwd(), sessions.latest_place
            if "files" in names_of_effects and not (home.path / DIRECTORY).exists():
                click.echo(f"agentobs: {_notice(home.path / DIRECTORY)}", err=True)
            observers.start(
                Scope(
                    home, here, place, environment, started, proxy.forward_mcp, keeps_content=keeps
                )
            )
            try:
                ending = commands.run(started, environment, signals, program)
            except commands.CommandError as error:
                _exit_with(error)
            finally:
                if effects and sessions.latest_place() is None:
                    sessions.place_of({}, None)  # the effects of a command without requests
                observers.stop()
        try:
            recorded = sessions.sessions()
            lines = _summaries(recorded, turns)
            if not proxy.counts.recorded and not proxy.counts.signed:
                outcome = "only effects were recorded" if lines else "nothing was recorded"
                lines.append(_without_requests(proxy, outcome, node=node))
            recorded_sessions.close_all(
                recorded, ending, was_interrupted=signals.ended_after_interrupt
            )
            if collector is not None:
                collector.sessions.close()
            stop_recorder()
            if collector is not None:
                ids = [each.session_id for each in recorded]
                lines.append(_telemetry_summary(home, collector, ids, started_ns))
            if proxy.counts.signed:
                lines.append(f"refused requests: {proxy.counts.signed}, because {SIGNED_FOR_PROXY}")
            lines += [f"no response from {each}" for each in proxy.counts.unreachable.values()]
        except Exception as error:  # an error here must not change the exit code of the command
            lines = [f"the end of the recording failed: {error_kind(error)}"]
        for line in lines:
            click.echo(f"agentobs: {printable(line)}", err=True)
    sys.exit(ending.exit_code)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free port",
    help="Port to listen on.",
)
@click.option(
    "--name",
    default="proxy",
    show_default=True,
    help="Name of sessions that their client does not name.",
)
@_content
@_variables
@click.option(
    "--upstream",
    metavar="URL",
    help="Base URL of the provider or gateway. Default: the provider's.",
)
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=IDLE_MINUTES,
    show_default=True,
    help="End a session after this time without a request.",
)
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="IP address to listen on.",
)
@click.option(
    "--allow-remote",
    "remote",
    metavar="HOST",
    help=f"Let other machines connect under this name. Requires TLS, and a secret in {SECRET}.",
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
@sign_aws_option
@click.pass_context
def proxy(
    context: click.Context,
    port: int,
    name: str,
    content: Any,
    extra: tuple[str, ...],
    upstream: str | None,
    idle_minutes: float,
    bind: str,
    remote: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    signs_aws: bool,
) -> None:
    """Record the requests of programs that use this proxy in place of the provider.

    Serves until Ctrl-C, and prints the variables that direct programs to the proxy. Each session of Claude Code is one
    session. Other clients name theirs with the header `x-agentobs-session`.
    """
    with needed_packages("the proxy", "proxy"):
        from agentobs.proxy import client_variables, recorded_sessions
        from agentobs.proxy.command import Ending
        from agentobs.proxy.listening import Address
        from agentobs.proxy.recording_proxy import Proxy
    from agentobs.determinism.entry import Entry
    from agentobs.recording.session import stop_recorder
    from agentobs.runtime import replaced

    secret = world.pop_environ(SECRET)
    found = client_variables.upstreams(
        os.environ,
        [client_variables.extra_variable(each) for each in extra],
        upstream,
        signs_aws=signs_aws,
    )
    sign = aws_signer(is_wanted=signs_aws)
    address = Address(bind, port, remote, secret, tls_cert, tls_key)
    turns = recorded_sessions.TurnCounter()
    home = _start(home_option(context), content, turns)
    sessions = recorded_sessions.client_sessions(
        home, name, Entry(obstacle={"kind": "proxy"}), content=content
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with replaced(identifies_callers=False):
        server = Proxy(
            found,
            sessions,
            address,
            environment=os.environ,
            token=secret,
            session_idle_seconds=idle_minutes * 60,
            sign=sign,
        )
        with server, contextlib.suppress(KeyboardInterrupt):
            click.echo(f"recording into {home.path}; stop with Ctrl-C")
            _print_exports({**server.variables, **client_variables.without_proxy(os.environ)})
            server.wait()
    recorded = sessions.sessions()
    for line in _summaries(recorded, turns):
        click.echo(f"agentobs: {printable(line)}", err=True)
    recorded_sessions.close_all(recorded, Ending(0))
    stop_recorder()
    sys.exit(130)


def _telemetry_receiver(environment: dict[str, str]) -> Collector:
    """Return a collector, and direct the telemetry of Claude Code to it.

    Raises:
        UsageError: the telemetry is already sent to another receiver, or a package is not installed.
    """
    with needed_packages("the collector", "otlp,proxy"):
        from agentobs.collector.telemetry_collector import Collector, claude_code_variables

    taken = [name for name in environment if name.startswith("OTEL_EXPORTER_OTLP")]
    if taken:
        raise UsageError(
            "the telemetry is already sent to another receiver",
            where=sorted(taken)[0],
            todo="Unset this variable, or configure that receiver to forward the telemetry to `agentobs collect`",
        )
    collector = Collector(grpc_port=None)
    environment |= claude_code_variables(collector.url)
    return collector


def _telemetry_summary(
    home: Home, collector: Collector, session_ids: Sequence[str], started_ns: int
) -> str:
    """Return one line about the received telemetry."""
    from agentobs.collector.collected_sessions import compared

    received = sum(collector.sessions.records.values())
    if not received:
        return (
            "no telemetry was received; `env` in the settings of Claude Code can send it elsewhere"
        )
    records = f"{received} record{'s' * (received != 1)} of telemetry"
    found = compared(home, session_ids, list(collector.sessions.client_ids), started_ns)
    if not found.requests:
        return f"{records}: no request can be compared"
    without = f", {found.unidentified} without a request ID" if found.unidentified else ""
    counted = f"{found.differences} of {found.requests} requests differ"
    return f"{records}: {counted}{without} (view telemetry_differences)"


def _start(home: str | None, content: Any, turns: TurnCounter) -> Any:
    """Start the recorder, and return its home.

    Raises:
        UsageError: the content mode is invalid.
        HomeError: the home cannot be used. A command that should be recorded is not run without a recording.
    """
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.options import Options, content_mode
    from agentobs.recording.session import start

    options = Options(content=content, backends=(turns,))
    content_mode(content, options)
    opened = open_home(home)
    start(str(opened.path), options)
    return opened


def _summaries(sessions: Sequence[Session], turns: TurnCounter) -> list[str]:
    from agentobs.proxy.recorded_sessions import summary
    from agentobs.recording.session import flush

    flush(FLUSH_SECONDS)
    return [summary(each, turns.turns[each.session_id]) for each in sessions]


def _without_requests(proxy: Proxy, outcome: str, *, node: bool) -> str:
    """Return what to try if no request was recorded; `outcome` states what was recorded."""
    if proxy.counts.recorded_by_client:
        return "the command records its requests itself, with agentobs"
    if proxy.counts.forwarded:
        return f"no request to a model came through the proxy, so {outcome}"
    names = ", ".join(list(proxy.variables)[:3])
    hints = [
        "--var NAME if it reads its base URL from another variable",
        *([] if node else ["--node if it is a Node.js program"]),
        "agentobs.record_all() inside a Python program",
    ]
    return (
        f"no request came, so {outcome}; the command seems to ignore {names}. Try "
        f"{', or '.join(hints)}"
    )


def _print_exports(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    sys.stdout.flush()


def _notice(directory: Path) -> str:
    """Return what a user must know before files are recorded in a home for the first time."""
    return (
        f"files are recorded into {printable(str(directory))} as they are: secrets in them are neither "
        "redacted nor encrypted"
    )


def _exit_with(error: Any) -> None:
    click.echo(f"error: {printable(str(error))}", err=True)
    sys.exit(error.exit_code)
