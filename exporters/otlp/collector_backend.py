"""OTLP: spans, events and metrics to a collector.

    backend = otlp.standard(endpoint="http://localhost:4318")
    agentobs.start(options=agentobs.Options(backends=(backend,)))

`standard` and `beta` return a backend. It receives facts on the recorder's thread, converts them to spans, log records
and sums with OpenTelemetry's SDK, and passes these to an outbox that sends them. It uses its own providers and neither
sets nor reads global ones. The only environment variable that it respects is `OTEL_SDK_DISABLED`, with a warning. Spans
have the IDs and times of the recording; an interaction is a trace.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import unquote

from agentobs import world
from agentobs.errors import UsageError, warn_once
from agentobs.installation import install_extra
from agentobs.ledger import load_prices
from agentobs.records.backend import ALL_KINDS, WrittenFact, checked_kinds
from agentobs.records.labels import Label, is_label
from exporters.conventions.profile import Profile
from exporters.conventions.semconv import profile_named
from exporters.otlp.outbox import (
    SIGNALS,
    DeliveryStatistics,
    Limits,
    Outbox,
    Send,
    Sent,
    Signal,
)

try:
    from exporters.otlp.collectors import Collector, GrpcSender, HttpSender, parse_collector
    from exporters.otlp.translation import Instruments, Translator, encoded, package_version
except ImportError as error:
    raise UsageError(
        f"OpenTelemetry is not completely installed: {error.name or 'a package'} is missing",
        where="exporters.otlp",
        todo=f"Install it with: {install_extra('otlp')}",
    ) from None

Protocol = Literal["http/protobuf", "http/json", "grpc"]
ENDPOINTS: Mapping[Protocol, str] = {
    "http/protobuf": "http://localhost:4318",
    "http/json": "http://localhost:4318",
    "grpc": "http://localhost:4317",
}
"""The default URL of a collector on this machine (opentelemetry.io, OTLP exporter configuration)."""


def standard(
    endpoint: str | None = None,
    *,
    protocol: Protocol = "http/protobuf",
    headers: Mapping[str, str] | None = None,
    service: str = "agentobs",
    resource: Mapping[str, str] | None = None,
    certificate: str | None = None,
    limits: Limits | None = None,
    profile: str = "both",
    signals: Sequence[Signal] = SIGNALS,
    kinds: Sequence[str] = ALL_KINDS,
) -> Backend:
    """Return a backend that sends spans, events and metrics to a collector.

    Args:
        endpoint: `http(s)://host:port`, and the collector's path if it has one; `/v1/traces` etc. are appended.
            Default: localhost, with the standard port of the protocol.
        protocol: the OTLP protocol.
        headers: credentials; never printed or recorded.
        service: the name of the service, `service.name`.
        resource: further attributes of this process, such as `deployment.environment.name`.
        certificate: a file of trusted certificates. Default: the certificates of the system.
        limits: limits of the queue, of messages and of retries.
        profile: the semantic-convention profile: `both`, `genai-latest`, `genai-1.41` or `openinference`.
        signals: what is sent: `traces`, `logs` (events) and `metrics`. Pass `("traces",)` for a collector that accepts
            only traces, such as Phoenix.
        kinds: the kinds of facts that are sent; docs/exporting.md lists them. Default: all that exist today, by name.

    Raises:
        UsageError: the endpoint, the protocol, the profile, a signal, a kind or a header is invalid, or a file cannot
            be read.
    """
    chosen_profile = profile_named(profile)
    return _backend(
        chosen_profile,
        endpoint,
        protocol,
        headers,
        service,
        resource,
        certificate,
        limits,
        signals,
        kinds,
    )


def beta(
    endpoint: str | None = None,
    *,
    protocol: Protocol = "http/protobuf",
    headers: Mapping[str, str] | None = None,
    service: str = "agentobs",
    resource: Mapping[str, str] | None = None,
    certificate: str | None = None,
    limits: Limits | None = None,
    profile: str = "both",
    signals: Sequence[Signal] = SIGNALS,
    kinds: Sequence[str] = ALL_KINDS,
) -> Backend:
    """Return a backend like that of `standard`, with hook spans and additional attributes; both may change at any time.

    Raises:
        UsageError: as for `standard`.
    """
    chosen_profile = profile_named(profile, is_beta=True)
    return _backend(
        chosen_profile,
        endpoint,
        protocol,
        headers,
        service,
        resource,
        certificate,
        limits,
        signals,
        kinds,
    )


class Backend:
    """Receives facts and sends them as telemetry; see `standard`."""

    def __init__(
        self,
        profile: Profile,
        sender: HttpSender | GrpcSender,
        resource: Mapping[str, str],
        limits: Limits,
        address: str,
        destination: Label,
        signals: Sequence[Signal] = SIGNALS,
        kinds: Sequence[str] = ALL_KINDS,
    ) -> None:
        """Use one profile and one collector, and send these signals of these kinds of facts."""
        self.kinds = checked_kinds(kinds, "kinds")
        """The kinds of facts that are sent."""
        self._profile, self._sender, self._signals = profile, sender, frozenset(signals)
        self.destination: Label | None = None if _is_disabled() else destination
        self.profile = Label(profile.name)
        """The name of the profile; sessions record it with the destination, which is None if nothing is sent."""
        self._resource = dict(resource)
        self._outbox = Outbox(self._send, self._gather, limits, address, sender.close)
        # The recorder's thread passes facts; another thread may close the backend.
        self._lock = threading.RLock()
        self._failed = 0
        self._create_providers()
        weak = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: _call_if_alive(weak))

    def __repr__(self) -> str:
        """Show only the name of the profile, because headers contain credentials."""
        return f"Backend({self._profile.name})"

    def __call__(self, written: WrittenFact) -> None:
        """Receive one fact; never waits, never raises."""
        try:
            with self._lock:
                self._translator.receive(written)
        except Exception:
            # A fact that cannot be converted is skipped, and later ones are not affected.
            self._failed += 1

    def flush(self, seconds: float = 5.0) -> bool:
        """Send all queued items. Return whether the collector accepted all of them in time."""
        return self._outbox.flush(seconds)

    def close(self, seconds: float = 0.25) -> bool:
        """End open spans as abandoned, and send queued items within this time. Return whether all were accepted."""
        with self._lock:
            self._translator.abandon()
        return self._outbox.close(seconds)

    def statistics(self) -> DeliveryStatistics:
        """Return the counts of spans and events so far."""
        return self._outbox.statistics()

    @property
    def failed(self) -> int:
        """The number of facts that could not be converted."""
        return self._failed

    @property
    def late_ends(self) -> int:
        """The number of spans that ended after they had been exported as abandoned; only the recording contains their
        ends.
        """
        return self._translator.follower.late_ends

    @property
    def open_spans(self) -> int:
        """The number of spans that have started but not ended."""
        return len(self._translator.follower.open)

    def _create_providers(self) -> None:
        """Create the providers, in a new process or after a fork. Their sums start at zero."""
        resource = {**self._resource, "service.instance.id": world.new_id()}
        self._instruments = Instruments(self._profile.metrics, resource)
        self._translator = Translator(
            self._profile, resource, self._put, self._instruments, world.now
        )
        self._translator.is_logging = "logs" in self._signals
        self._instruments.is_counting = "metrics" in self._signals

    def _put(self, signal: Signal, payload: Any, size: int) -> None:
        if signal in self._signals:
            self._outbox.put(signal, payload, size)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._sender.after_fork()
        if isinstance(self._sender, GrpcSender):
            self.destination = None
        self._create_providers()

    def _gather(self) -> Any:
        with self._lock:
            return self._instruments.read()

    def _send(self, signal: Signal, payloads: Sequence[Any]) -> Sent:
        """Send one message; runs on the outbox's thread, and never raises."""
        items = payloads[0].resource_metrics if signal == "metrics" else payloads
        return _send_message(self._sender, signal, items)


@dataclass(frozen=True, slots=True)
class Sending:
    """A connection to a collector, for callers that send on their own thread."""

    send: Send = field(repr=False)
    """Sends one message; never raises."""
    destination: Label
    """The name of the collector in send positions."""

    def named(self, name: str | None) -> Label:
        """Return `name` as a label, or the default name of the collector if it is None.

        Raises:
            UsageError: the name is not a label.
        """
        if name is not None and not is_label(name):
            raise UsageError(
                "the name is not a label, so it could contain private data",
                where="--as",
                todo="Use only letters, digits and . _ : / @ -",
            )
        return Label(name) if name is not None else self.destination


@contextlib.contextmanager
def sending(
    endpoint: str | None,
    protocol: Protocol = "http/protobuf",
    headers: Mapping[str, str] | None = None,
    certificate: str | None = None,
    limits: Limits | None = None,
) -> Iterator[Sending]:
    """Open a connection to a collector; the arguments are those of `standard`.

    Raises:
        UsageError: as for `standard`.
    """
    collector, sender = _collector_and_sender(
        endpoint, protocol, headers, certificate, limits or Limits()
    )
    try:
        yield Sending(partial(_send_message, sender), collector.destination)
    finally:
        sender.close()


def headers_of(variable: str | None) -> dict[str, str]:
    """Return the headers in an environment variable, in the format of `OTEL_EXPORTER_OTLP_HEADERS`.

    Raises:
        UsageError: the variable is not set, or is not a list of name=value. Its value is not printed.
    """
    if variable is None:
        return {}
    header_list = world.environ(variable)
    pairs = [each.partition("=") for each in (header_list or "").split(",") if each.strip()]
    if not header_list or not all(equals for _, equals, _ in pairs):
        raise UsageError(
            "the variable is not set"
            if not header_list
            else "the variable does not contain a list of headers",
            where=variable,
            todo="Set it to name=value,name=value",
        )
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _backend(
    profile: Profile,
    endpoint: str | None,
    protocol: Protocol,
    headers: Mapping[str, str] | None,
    service: str,
    resource: Mapping[str, str] | None,
    certificate: str | None,
    limits: Limits | None,
    signals: Sequence[Signal],
    kinds: Sequence[str],
) -> Backend:
    limits = limits or Limits()
    if not signals or isinstance(signals, str) or not set(signals) <= set(SIGNALS):
        raise UsageError(
            f"unknown signals: {str(signals)[:40]!r}",
            where="signals",
            todo=f"Pass a tuple with one or more of {', '.join(SIGNALS)}",
        )
    collector, sender = _collector_and_sender(endpoint, protocol, headers, certificate, limits)
    # This takes half a second, so do it before the agent runs.
    load_prices()
    attributes = {"service.name": service, "service.version": package_version(), **(resource or {})}
    attributes |= {"agentobs.semconv": profile.version}
    return Backend(
        profile,
        sender,
        attributes,
        limits,
        collector.address,
        collector.destination,
        signals,
        kinds,
    )


def _collector_and_sender(
    endpoint: str | None,
    protocol: Protocol,
    headers: Mapping[str, str] | None,
    certificate: str | None,
    limits: Limits,
) -> tuple[Collector, HttpSender | GrpcSender]:
    """Return a collector and a sender for it."""
    if protocol not in ENDPOINTS:
        raise UsageError(
            f"unknown protocol: {str(protocol)[:40]!r}",
            where="protocol",
            todo=f"Use one of {', '.join(ENDPOINTS)}",
        )
    collector = parse_collector(
        endpoint or ENDPOINTS[protocol], headers or {}, limits.timeout_seconds, certificate
    )
    try:
        _ = collector.tls
    except OSError as error:
        raise UsageError(
            f"the certificates cannot be read: {type(error).__name__}",
            where=str(certificate),
            todo="Pass a file with certificates in PEM format",
        ) from None
    if _is_disabled():
        warn_once("OTEL_SDK_DISABLED is set: OpenTelemetry's SDK creates nothing to send")
    sender = (
        GrpcSender(collector)
        if protocol == "grpc"
        else HttpSender(collector, is_json="json" in protocol)
    )
    return collector, sender


def _is_disabled() -> bool:
    return (world.environ("OTEL_SDK_DISABLED") or "").strip().lower() == "true"


def _send_message(sender: HttpSender | GrpcSender, signal: Signal, payloads: Sequence[Any]) -> Sent:
    """Send one message; never raises."""
    try:
        message = encoded(signal, payloads)
    except Exception as error:
        return Sent("unreadable", why=f"a message could not be encoded: {type(error).__name__}")
    try:
        return sender(signal, message)
    except Exception as error:
        return Sent("later", why=type(error).__name__)


def _call_if_alive(weak: weakref.WeakMethod[Any]) -> None:
    if (method := weak()) is not None:
        method()
