"""A replayed command that continues with the real provider after a turn, and is recorded from its start.

The command sends its requests to a recording proxy, which first passes each of them to the server of the replay. If
that server marks a request as live, the proxy sends it to the provider, with the credentials of the command. Both parts
are recorded as one session, a fork of the recorded one. The responses of the replayed part cost nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from agentobs.effects.observation import Scope
from agentobs.effects.switches import observed
from agentobs.errors import AgentobsError, UsageError
from agentobs.provider.content_encoding import decoded_body
from agentobs.provider.registry import credentials, dialect_of
from agentobs.proxy.client_sessions import ClientSessions
from agentobs.proxy.client_variables import extra_variable, upstreams
from agentobs.proxy.command import Ending
from agentobs.proxy.forwarding import SIGNED, Sign
from agentobs.proxy.node_redirection import REDIRECTED, node_routes, node_variables
from agentobs.proxy.recorded_sessions import client_sessions, close_all, command_entry
from agentobs.proxy.recording_proxy import Proxy
from agentobs.recording.journal.home import existing_home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.lineage import Parent
from agentobs.recording.options import Options
from agentobs.recording.session import current_recorder, start, stop_recorder
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.responses import REPLAYED, SENT
from agentobs.runtime import replaced
from replay.command.continuation import ReplayedPart
from replay.fixture.format import Fixture
from replay.fixture.original_answers import check_sendable, unsendable, with_originals
from replay.scenario.fork_plan import Fork
from replay.scenario.live_changes import LiveChanges
from replay.scenario.live_meter import LiveMeter
from replay.served.request_form import bytes_without_marks
from replay.served.spine_script import LIVE_HEADER

NO_KEY = "the command sends no credentials, so it cannot continue with the provider; nothing was sent to it"
NOT_SIGNED = "a request that is signed with AWS keys can only be changed if it is signed again"
NO_REQUEST = "the command sent no request, so it could not continue with the provider"
KEY_TODO = "Set the variable from which it reads its key, such as ANTHROPIC_API_KEY"
SIGN_TODO = "Pass --sign-aws, or in Python Live(sign=AwsSigner())"


@dataclass(frozen=True, slots=True)
class Live:
    """Continues a replayed command with the real provider, which costs money.

    The requests after the last replayed turn go to the base URL in the environment of the command, with its
    credentials. `replay.run_command(fixture, until_turn=3, then=Live())` replays three turns first.
    """

    home: str | Path | None = None
    """Where the run is recorded; None for `AGENTOBS_HOME`, else `.agentobs`."""
    model: str | None = None
    """The model of the live requests; None to keep that of the command."""
    system: str | None = None
    """The system prompt of the live requests; None to keep that of the command."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other options of the live requests, such as `{"max_tokens": 2000}`; the value None removes an option."""
    sign: Sign | None = None
    """Signs requests to AWS again, such as `agentobs.proxy.aws_signing.AwsSigner()`; None if none is signed for the
    proxy.
    """
    prompt: str | None = None
    """A text for the model, after the results of the last replayed response; None for none."""
    meter: LiveMeter | None = field(default=None, repr=False)
    """Adds up the live requests, and limits their cost; None for no limit."""

    def prepared(self, fixture: Fixture, turn: int) -> Fixture:
        """Return the fixture with the original responses of its session, if the provider requires them in a history.

        Raises:
            RecordingError: it requires them, and they cannot be read.
        """
        why = ""
        if fixture.session_id is not None and unsendable(fixture, turn):
            try:
                home = existing_home(self.home)
                session = read_session(home, fixture.session_id, segment_ids(home))
                fixture = with_originals(fixture, session)
            except AgentobsError as error:
                why = str(error)
        check_sendable(fixture, turn, why)
        return fixture

    @contextmanager
    def opened(self, part: ReplayedPart) -> Iterator[_Continued]:
        """Record the run, and send the requests that the server of the replay marks as live to the provider.

        Raises:
            HomeError: the home cannot be used.
            UsageError: nothing can be recorded, or a base URL is invalid.
        """
        home = open_home(self.home)
        extra = [extra_variable(name) for name in part.command.base_url_variables]
        found = upstreams(
            part.environment,
            extra,
            redirects=part.command.redirects_node,
            signs_aws=self.sign is not None,
        )
        entry = command_entry(
            part.command.argv,
            part.environment,
            part.command.base_url_variables,
            redirects_node=part.command.redirects_node,
        )
        arguments = {**(entry.arguments or {}), "directory": str(part.directory)}
        entry = dataclasses.replace(entry, arguments=arguments)
        sessions = client_sessions(home, part.fixture.name, entry, may_join=False)
        fork = Fork(part.turn, self.model, self.system, self.options, self.prompt, meter=self.meter)
        routing = _Routing(part, fork, self.sign)
        backends = () if self.meter is None else (self.meter,)
        has_started = start(str(home.path), Options(backends=backends))
        try:
            if current_recorder() is None:
                raise UsageError(
                    "the run cannot be recorded, so it does not continue with the provider",
                    todo="Run it outside of another replay",
                )
            with ExitStack() as stack:
                parent = Parent(part.fixture.session_id, part.turn)
                stack.enter_context(replaced(identifies_callers=False, fork_parent=parent))
                proxy = stack.enter_context(
                    Proxy(
                        found,
                        sessions,
                        environment=part.environment,
                        sign=self.sign,
                        wrap=routing.wrapped,
                    )
                )
                variables = dict(proxy.variables)
                if part.command.redirects_node:
                    routes = node_routes(
                        found, lambda each: f"{proxy.url}/{REDIRECTED}{each.route}"
                    )
                    variables |= node_variables(part.environment, routes)
                if part.files is not None:
                    command, environment = list(part.command.argv), dict(part.environment)
                    place = sessions.latest_place
                    scope = Scope(home, part.files, place, environment, command)
                    stack.callback(observed(["files"], scope).stop)
                yield _Continued(variables, sessions, routing, stack)
        finally:
            if has_started:
                stop_recorder()


@dataclass(frozen=True, slots=True)
class _Continued:
    variables: dict[str, str]
    _sessions: ClientSessions
    _routing: _Routing
    _open: ExitStack

    @property
    def problem(self) -> UsageError | None:
        return self._routing.problem or (None if self._routing.requests else self._no_request())

    def _no_request(self) -> UsageError:
        part = self._routing.part
        needs_signature = part.command.uses_bedrock and self._routing.sign is None
        todo = SIGN_TODO if needs_signature else KEY_TODO
        return UsageError(NO_REQUEST, where=part.fixture.name, todo=todo)

    def close(self, exit_code: int) -> tuple[str, ...]:
        self._open.close()
        recorded = self._sessions.sessions()
        close_all(recorded, Ending(exit_code))
        return tuple(each.session_id for each in recorded)


class _Routing:
    """Decides where each request goes; the changes of `fork` apply to the requests for the provider."""

    def __init__(self, part: ReplayedPart, fork: Fork, sign: Sign | None) -> None:
        self.part, self.sign = part, sign
        self.changes = LiveChanges(fork, part.fixture)
        self.requests = 0
        self.problem: UsageError | None = None

    def wrapped(self, inner: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
        """Return a transport that uses `inner` for the requests for the provider."""
        return _RoutedTransport(inner, self)

    def lacks_key(self, request: httpx2.Request) -> bool:
        """Count a request; return whether it is for a model and has no credentials."""
        self.requests += 1
        if not dialect_of(path := request.url.path).makes_turns(path):
            return False
        found = credentials(request.headers)
        return not any(each and not each.startswith("[redacted:") for each in found)

    def refuse(self, found: str, todo: str = "") -> httpx2.Response:
        """End the command, and return the response to its request."""
        if self.problem is None:
            self.problem = UsageError(found, where=self.part.fixture.name, todo=todo)
        self.part.end("refused")
        dialect = dialect_of("")
        body = dialect.error_body(401, found)
        headers = {"content-type": "application/json", **dialect.retry_headers(None)}
        return httpx2.Response(401, headers=headers, content=body, extensions={REPLAYED: True})

    def changed(self, request: httpx2.Request) -> httpx2.Request:
        """Return the request to send to the provider.

        Raises:
            UsageError: it cannot be changed: it is not a JSON object, or it is signed and is not signed again.
            ValueError: it cannot be signed again.
        """
        path = request.url.path
        if not dialect_of(path).makes_turns(path):
            return request
        encoding = request.headers.get("content-encoding", "")
        readable = decoded_body(request.content, encoding)
        body = bytes_without_marks(readable)
        changed = self.changes.applied(path, body)
        body = changed or body
        # The raw path, because a decoded one cannot be encoded again with certainty.
        raw = request.url.raw_path.decode("ascii")
        target = self.changes.path(raw)
        if body == readable and target == raw:
            return request
        is_signed = request.headers.get("authorization", "").encode().startswith(SIGNED)
        if is_signed and self.sign is None:
            if changed is None and target == raw:
                return request  # only marks would be removed
            raise UsageError(NOT_SIGNED, todo=SIGN_TODO)
        left_out = (b"content-length", b"content-encoding")
        headers = [each for each in request.headers.raw if each[0].lower() not in left_out]
        extensions = request.extensions
        url = request.url.copy_with(raw_path=target.encode("ascii"))
        sent = httpx2.Request(
            request.method, url, headers=headers, content=body, extensions=extensions
        )
        return self.sign(sent) if is_signed and self.sign is not None else sent


class _RoutedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to the server of the replay, and those that it marks as live to the provider."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, routing: _Routing) -> None:
        self._inner, self._routing = inner, routing
        self._served = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        extensions = request.extensions
        request.extensions = {**extensions, SENT: None}
        await request.aread()
        if self._routing.problem is not None:  # nothing is sent after a refusal
            return self._routing.refuse(self._routing.problem.found)
        if self._routing.lacks_key(request):
            return self._routing.refuse(NO_KEY, KEY_TODO)
        part = self._routing.part
        response = await self._served.handle_async_request(_local(request, part.url))
        if response.headers.get(LIVE_HEADER) != part.mark:
            response.extensions[REPLAYED] = True
            request.extensions = extensions
            return response
        await response.aread()
        await response.aclose()
        try:
            sent = await asyncio.to_thread(self._routing.changed, request)
        except UsageError as error:
            return self._routing.refuse(error.found, error.todo)
        except ValueError as error:
            return self._routing.refuse(str(error))
        request.extensions = {**extensions, SENT: sent}
        return await self._inner.handle_async_request(sent)

    async def aclose(self) -> None:
        await self._served.aclose()
        await self._inner.aclose()


_NOT_LOCAL = frozenset(
    ("host", "connection", "accept-encoding", "content-length", "transfer-encoding", "expect")
)


def _local(request: httpx2.Request, url: str) -> httpx2.Request:
    """Return a request for the server of the replay, which sends responses without compression."""
    return httpx2.Request(
        request.method,
        httpx2.URL(url).copy_with(raw_path=request.url.raw_path),
        headers=[pair for pair in request.headers.multi_items() if pair[0] not in _NOT_LOCAL],
        content=request.content,
        extensions={"timeout": httpx2.Timeout(None).as_dict()},
    )
