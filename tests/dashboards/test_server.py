"""The command and its server: sockets, checks, output, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.errors import AgentobsError, UsageError
from agentobs.installation import install_extra
from agentobs.recording.journal.home import Home, open_home
from dashboards.app import server
from dashboards.app.routes import application
from dashboards.app.server import PORT, PORTS, Bound, DashboardOptions, bind
from dashboards.app.site import Site
from dashboards.app.store_view import Reader
from tests.dashboards.live_app import Client, serving
from tests.dashboards.test_access_guard import certificate
from tests.store.recordings import ROOT, conversation, record

__all__ = ["certificate"]

pytestmark = pytest.mark.xdist_group("dashboards_guarding")

PASSWORD = "correct horse battery staple"


@contextlib.contextmanager
def close_sockets(*all_bound: Bound) -> Iterator[None]:
    """Close the sockets of these servers on exit."""
    with contextlib.ExitStack() as stack:
        for each in (each for bound in all_bound for each in bound.sockets):
            stack.enter_context(each)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = open_home(tmp_path / "home")
    record(made, conversation(1, name="a-secret-name"))
    return made


def started(home: Home, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command."""
    return subprocess.Popen(
        [sys.executable, "-m", "agentobs", "--home", str(home.path), "dashboard", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def printed_url(process: subprocess.Popen[str]) -> str:
    """Return the URL that the process prints."""
    assert process.stdout
    while line := process.stdout.readline():
        if found := re.search(r"https?://\S+", line):
            return found[0]
    raise AssertionError(process.communicate()[1])


def remaining_output(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the rest of the output of a process, after it has ended."""
    assert process.stdout
    assert process.stderr
    rest = process.stdout.read(), process.stderr.read()
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    return rest


def rejected(home: Home, *arguments: str, **environment: str) -> str:
    """Return the single line with which the command rejects its arguments."""
    runner = CliRunner()
    called = runner.invoke(
        cli, ["--home", str(home.path), "dashboard", *arguments], env=environment
    )
    assert isinstance(called.exception, AgentobsError), called.output
    return str(called.exception)


@pytest.mark.slow
def test_the_command_prints_a_url_and_ends_cleanly(home: Home, tmp_path: Path) -> None:
    """The command prints the URL, serves until SIGINT, exits with 0, and writes no log.

    A browser that it opens gets the path of a private file with the URL, because others can see its arguments.
    """
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\nf=\"${{1#file://}}\"\necho \"$1\" > {seen}.part\nstat -c %a \"$f\" >> {seen}.part\n"
                       f"cat \"$f\" >> {seen}.part\nmv {seen}.part {seen}\n")  # fmt: skip
    browser.chmod(0o700)
    process = started(home, "--port", "0", "--open", BROWSER=f"{browser} %s")
    address = printed_url(process)
    assert re.fullmatch(r"http://[0-9a-f]{16}\.localhost:\d+/\?token=[0-9a-f]{64}", address)
    client = Client(address)
    assert client.get("/?q=looked-for").status == 200
    assert "a-secret-name" in client.get("/").words
    assert client.get("/nowhere").status == 404
    while not seen.exists():
        assert process.poll() is None
        time.sleep(0.01)
    argument, mode, *page = seen.read_text().splitlines()
    held = socket.create_connection(
        (client.host, client.port)
    )  # an idle connection does not delay the shutdown
    process.send_signal(signal.SIGINT)
    out, err = remaining_output(process)
    held.close()
    assert process.returncode == 0
    assert err == ""
    assert "looked-for" not in out
    last = r"The dashboard was opened\. For another browser: (\S+)"
    stop, opened = out.strip().splitlines()
    assert stop == "Press Ctrl-C to stop."
    [again] = re.findall(last, opened)
    assert again.partition("=")[0] == address.partition("=")[0]
    assert again != address
    assert argument.startswith("file://")
    assert "token" not in argument
    assert mode == "600"
    assert f'content="0; url={address}"' in page[0]
    assert not Path(argument.removeprefix("file://")).exists()


@pytest.mark.slow
def test_the_dashboard_opens_after_its_output_is_closed(home: Home) -> None:
    """The URL works even if the next one cannot be printed, such as after `agentobs dashboard | head -2`."""
    process = started(home, "--port", "0")
    address = printed_url(process)
    assert process.stdout
    assert process.stdout.readline() == "Press Ctrl-C to stop.\n"
    process.stdout.close()
    assert "a-secret-name" in Client(address).get("/").words
    process.send_signal(signal.SIGINT)
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    process.stderr.close()


def test_a_port_in_use_gives_one_clear_error(home: Home) -> None:
    """If a requested port is in use, the command fails. Without a requested port, the next free port is used."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = rejected(home, "--port", str(port))
        assert result.startswith(
            f"127.0.0.1 port {port}: cannot listen on this address: address already in use."
        )
        assert "--port 0" in result
    first, second = bind(DashboardOptions()), bind(DashboardOptions())
    with close_sockets(first, second):
        ports = [first.keys.port, second.keys.port]
        assert len(set(ports)) == 2
        assert all(PORT <= port < PORT + PORTS for port in ports)


def addresses(options: DashboardOptions) -> list[str]:
    """Return the addresses on which the server listens."""
    bound = bind(options)
    with close_sockets(bound):
        assert len({each.getsockname()[1] for each in bound.sockets}) == 1
        return [each.getsockname()[0] for each in bound.sockets]


def test_the_server_listens_only_on_loopback(home: Home) -> None:
    """The server listens only on the two addresses to which browsers resolve the printed name."""
    assert addresses(DashboardOptions(port=0)) == ["127.0.0.1", "::1"]
    assert addresses(DashboardOptions(bind="::1", port=0)) == ["::1", "127.0.0.1"]
    for bound in ("127.0.0.1", "::1", "127.0.0.2"):
        assert addresses(DashboardOptions(bind=bound, port=0, loopback_address=True)) == [bound]


def test_the_port_must_be_free_on_both_loopback_addresses() -> None:
    """A port that is in use on the other loopback address is not used, because that server would receive the token."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^::1 port {port}: cannot listen on this address"):
            bind(DashboardOptions(port=port))
        with socket.create_server(("127.0.0.1", port)):
            pass  # the sockets that were bound before the error are closed


def test_a_machine_without_ipv6_uses_ipv4_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If there is no ::1, the server uses only 127.0.0.1; it never skips an address whose port is in use."""

    class Old(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **more)

    monkeypatch.setattr(socket, "socket", Old)
    assert addresses(DashboardOptions(port=0)) == ["127.0.0.1"]
    with pytest.raises(UsageError, match="::1 port 0: cannot listen on this address"):
        bind(DashboardOptions(bind="::1", port=0))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DashboardOptions(bind="0.0.0.0"), "other machines could connect to this address"),
        (DashboardOptions(bind="::"), "other machines could connect to this address"),
        (DashboardOptions(bind="10.1.2.3"), "other machines could connect to this address"),
        (DashboardOptions(bind="10.1.2.3", password=PASSWORD), "other machines could connect to this address"),
        (DashboardOptions(bind="127.0.0.2"), "--loopback-address"),
        (DashboardOptions(bind="10.1.2.3", loopback_address=True), "other machines could connect to this address"),
        (DashboardOptions(remote=("localhost",)), "without a password"),
        (DashboardOptions(remote=("localhost",), password=""), "without a password"),
        (DashboardOptions(remote=("localhost",), password="short"), "the password has only 5 characters"),
        (DashboardOptions(remote=("localhost",), password=PASSWORD), "would be sent unencrypted"),
        (
            DashboardOptions(remote=("localhost",), password=PASSWORD, tls_cert=Path("cert")),
            "would be sent unencrypted",
        ),
        (DashboardOptions(remote=("http://localhost/",), password=PASSWORD), "expected a host name or an address"),
        (DashboardOptions(remote=("*",), password=PASSWORD), "expected a host name or an address"),
        (DashboardOptions(remote=("0.0.0.0",), password=PASSWORD), "expected a host name or an address"),
        (DashboardOptions(remote=("a.invalid",), password=PASSWORD), "cannot resolve the name"),
        (DashboardOptions(tls_cert=Path("cert")), "must be passed together"),
        (DashboardOptions(tls_cert=Path("nowhere"), tls_key=Path("nowhere")), "cannot be used"),
    ],
)  # fmt: skip
def test_remote_access_requires_all_protections(options: DashboardOptions, expected: str) -> None:
    """Remote access requires a name, a long password and TLS; without one of them, no socket is bound."""
    with pytest.raises(UsageError, match=expected):
        bind(options)


def test_an_unusable_certificate_is_an_error(certificate: tuple[Path, Path]) -> None:
    """A key with a passphrase and an invalid file are rejected without prompting for a passphrase."""
    cert, key = certificate
    for tls in ((cert, key.with_name("locked.pem")), (key, cert), (cert, Path(__file__))):
        with pytest.raises(UsageError, match="PEM"):
            bind(DashboardOptions(None, 0, ("localhost",), PASSWORD, *tls))


@pytest.mark.slow
def test_remote_access_with_all_protections(home: Home, certificate: tuple[Path, Path]) -> None:
    """With a name, a password from the environment and TLS, the server starts, and its URL has no token.

    It ends cleanly at SIGTERM.
    """
    cert, key = certificate
    arguments = ["--port", "0", "--allow-remote", "localhost", "--bind", "127.0.0.1"]
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    process = started(home, *arguments, *tls, AGENTOBS_DASHBOARD_PASSWORD=PASSWORD)
    try:
        address = printed_url(process)
        assert re.fullmatch(r"https://localhost:\d+/", address)
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        line = http.client.HTTPSConnection("127.0.0.1", urlsplit(address).port, context=trusting)
        line.request("GET", "/")
        answer = line.getresponse()
        assert (answer.status, b"password" in answer.read()) == (403, True)
        line.close()
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = remaining_output(process)
    assert (process.returncode, err) == (0, "")
    assert PASSWORD not in out


def test_the_command_rejects_arguments_in_one_sentence(home: Home, tmp_path: Path) -> None:
    """A missing home, a password without remote access, and remote access without a password each give one sentence."""
    nowhere = Home(tmp_path / "nowhere")
    assert "no recordings found" in rejected(nowhere)
    file = tmp_path / "password"
    file.write_text("")
    assert "--password-file: requires --allow-remote" in rejected(
        home, "--password-file", str(file)
    )
    assert "without a password" in rejected(home, "--allow-remote", "localhost")
    assert "without a password" in rejected(
        home, "--allow-remote", "localhost", "--password-file", str(file)
    )
    file.write_bytes(b"\xff\xfe")
    assert "expected UTF-8 text" in rejected(
        home, "--allow-remote", "localhost", "--password-file", str(file)
    )
    file.write_text(f"{PASSWORD}\n")
    assert "would be sent unencrypted" in rejected(
        home, "--allow-remote", "localhost", "--password-file", str(file)
    )
    assert not (nowhere.path).exists()


def test_a_missing_package_is_named(home: Home) -> None:
    """If a package of the extra is missing, one sentence names the extra to install."""
    code = (
        "import sys; sys.modules['starlette'] = None; from agentobs.cli import main; "
        f"main(['--home', {str(home.path)!r}, 'dashboard'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert install_extra("dashboards") in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_many_requests_use_few_threads(home: Home) -> None:
    """Many concurrent requests all get a response, while at most THREADS threads render pages."""
    statuses: list[int] = []
    with serving(home) as client:
        before = threading.active_count()

        def read() -> None:
            statuses.append(client.get("/").status)

        threads = [threading.Thread(target=read) for _ in range(2 * server.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert threading.active_count() <= before + server.THREADS
    assert statuses == [200] * 2 * server.THREADS


@pytest.mark.slow
def test_no_page_shows_a_traceback(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """The page and the terminal show the type and place of an internal error, without any data."""
    with serving(home) as client:
        got = client.get("/sessions/" + "a" * 32)
        assert got.status == 404
        assert "Traceback" not in got.words
        with pytest.MonkeyPatch.context() as patched:

            def fails(*_: object) -> None:
                raise ValueError("a-secret-value")

            patched.setattr("dashboards.app.session_list.filter_options", fails)
            broken = client.get("/")
    assert broken.status == 500
    assert "ValueError at test_server.py" in broken.words
    assert "a-secret-value" not in broken.html
    printed = capsys.readouterr()
    assert "a-secret-value" not in printed.out + printed.err
    assert "a page failed: ValueError" in printed.err


@pytest.mark.slow
def test_a_client_that_leaves_is_not_an_error(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a client disconnects before it has sent its request, no page has failed."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"sql=", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/sql",
        "raw_path": b"/sql",
        "query_string": b"",
        "headers": [(b"content-type", b"application/x-www-form-urlencoded")],
    }
    with Reader(home) as reader:
        asyncio.run(application(Site(home=home, reader=reader))(scope, receive, send))
    assert sent[0]["status"] == 400
    assert capsys.readouterr().err == ""
