"""The command and its server: where it listens, what it refuses, what it prints, and how it ends."""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.errors import AgentobsError, UsageError
from agentobs.recording.journal.home import Home, open_home
from dashboards.app import server
from dashboards.app.server import PORT, TRIES, Bound, Options, bind
from tests.dashboards.opening import Client, opened
from tests.dashboards.test_guarding import certificate
from tests.store.making import ROOT, conversation, record

__all__ = ["certificate"]

pytestmark = pytest.mark.xdist_group("dashboards_guarding")

PASSWORD = "correct horse battery staple"


@contextlib.contextmanager
def closing(*all_bound: Bound) -> Iterator[None]:
    """Let their sockets go at the end."""
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
    """Start the command, as a person does."""
    return subprocess.Popen(
        [sys.executable, "-m", "agentobs", "--home", str(home.path), "dashboard", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def address_of(process: subprocess.Popen[str]) -> str:
    """Return the address that it prints."""
    assert process.stdout
    while line := process.stdout.readline():
        if found := re.search(r"https?://\S+", line):
            return found[0]
    raise AssertionError(process.communicate()[1])


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the rest of what a process prints until it has ended."""
    assert process.stdout
    assert process.stderr
    rest = process.stdout.read(), process.stderr.read()
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    return rest


def refused(home: Home, *arguments: str, **environment: str) -> str:
    """Return the one line with which the command refuses."""
    runner = CliRunner()
    called = runner.invoke(
        cli, ["--home", str(home.path), "dashboard", *arguments], env=environment
    )
    assert isinstance(called.exception, AgentobsError), called.output
    return str(called.exception)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_an_address_and_ends_cleanly(home: Home, end: signal.Signals) -> None:
    """The command prints the address, serves until Ctrl-C or a termination, and ends with 0; no log is written."""
    process = started(home, "--port", "0")
    address = address_of(process)
    assert re.fullmatch(r"http://[0-9a-f]{16}\.localhost:\d+/\?token=[0-9a-f]{64}", address)
    client = Client(address)
    assert client.get("/?q=looked-for").status == 200
    assert "a-secret-name" in client.get("/").words
    assert client.get("/nowhere").status == 404
    held = socket.create_connection(
        (client.host, client.port)
    )  # somebody who never asks does not keep it
    process.send_signal(end)
    out, err = ended(process)
    held.close()
    assert process.returncode == 0
    assert err == ""
    assert "token" not in out
    assert "looked-for" not in out
    assert out.strip() == "Press Ctrl-C to stop."


def test_a_port_that_is_taken_is_one_clear_error(home: Home) -> None:
    """A named port that somebody has is refused; where none is named, the next free one is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(home, "--port", str(port))
        assert told.startswith(
            f"127.0.0.1 port {port}: cannot listen on this address: address already in use."
        )
        assert "--port 0" in told
    first, second = bind(Options()), bind(Options())
    with closing(first, second):
        ports = [first.keys.port, second.keys.port]
        assert len(set(ports)) == 2
        assert all(PORT <= port < PORT + TRIES for port in ports)


def addresses(options: Options) -> list[str]:
    """Return where it listens."""
    bound = bind(options)
    with closing(bound):
        assert len({each.getsockname()[1] for each in bound.sockets}) == 1
        return [each.getsockname()[0] for each in bound.sockets]


def test_nobody_else_can_reach_it(home: Home) -> None:
    """It is bound to loopback alone, and to both addresses at which a browser looks for the printed name."""
    assert addresses(Options(port=0)) == ["127.0.0.1", "::1"]
    assert addresses(Options(bind="::1", port=0)) == ["::1", "127.0.0.1"]
    for bound in ("127.0.0.1", "::1", "127.0.0.2"):
        assert addresses(Options(bind=bound, port=0, loopback_address=True)) == [bound]


def test_nobody_else_has_its_port_on_the_other_address() -> None:
    """Who listens on the port at the other address of loopback would be sent the token: such a port is not taken."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^::1 port {port}: cannot listen on this address"):
            bind(Options(port=port))
        with socket.create_server(("127.0.0.1", port)):
            pass  # what was bound before is let go


def test_a_machine_without_the_newer_addresses_does_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is no ::1, 127.0.0.1 is enough; a port that is taken there is never left out."""

    class Old(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **more)

    monkeypatch.setattr(socket, "socket", Old)
    assert addresses(Options(port=0)) == ["127.0.0.1"]
    with pytest.raises(UsageError, match="::1 port 0: cannot listen on this address"):
        bind(Options(bind="::1", port=0))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(bind="0.0.0.0"), "other machines could connect to this address"),
        (Options(bind="::"), "other machines could connect to this address"),
        (Options(bind="10.1.2.3"), "other machines could connect to this address"),
        (Options(bind="10.1.2.3", password=PASSWORD), "other machines could connect to this address"),
        (Options(bind="127.0.0.2"), "--loopback-address"),
        (Options(bind="10.1.2.3", loopback_address=True), "other machines could connect to this address"),
        (Options(remote=("localhost",)), "without a password"),
        (Options(remote=("localhost",), password=""), "without a password"),
        (Options(remote=("localhost",), password="short"), "the password has only 5 characters"),
        (Options(remote=("localhost",), password=PASSWORD), "would be sent unencrypted"),
        (Options(remote=("localhost",), password=PASSWORD, tls_cert=Path("cert")), "would be sent unencrypted"),
        (Options(remote=("http://localhost/",), password=PASSWORD), "expected a host name or an address"),
        (Options(remote=("*",), password=PASSWORD), "expected a host name or an address"),
        (Options(remote=("0.0.0.0",), password=PASSWORD), "expected a host name or an address"),
        (Options(remote=("a.invalid",), password=PASSWORD), "cannot resolve the name"),
        (Options(tls_cert=Path("cert")), "must be passed together"),
        (Options(tls_cert=Path("nowhere"), tls_key=Path("nowhere")), "cannot be used"),
    ],
)  # fmt: skip
def test_it_refuses_to_be_open_to_others_by_halves(options: Options, told: str) -> None:
    """Beyond loopback it takes a name, a long password and TLS: without any of them nothing is bound."""
    with pytest.raises(UsageError, match=told):
        bind(options)


def test_a_certificate_that_cannot_be_used_is_told(certificate: tuple[Path, Path]) -> None:
    """A key that has a passphrase, and files that are something else, are refused and not asked about."""
    cert, key = certificate
    for tls in ((cert, key.with_name("locked.pem")), (key, cert), (cert, Path(__file__))):
        with pytest.raises(UsageError, match="PEM"):
            bind(Options(None, 0, ("localhost",), PASSWORD, *tls))


def test_it_is_served_to_others_with_all_of_it(home: Home, certificate: tuple[Path, Path]) -> None:
    """With name, password and TLS it is served, the password taken from the environment; the address has no token."""
    cert, key = certificate
    arguments = ["--port", "0", "--allow-remote", "localhost", "--bind", "127.0.0.1"]
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    process = started(home, *arguments, *tls, AGENTOBS_DASHBOARD_PASSWORD=PASSWORD)
    try:
        address = address_of(process)
        assert re.fullmatch(r"https://localhost:\d+/", address)
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        line = http.client.HTTPSConnection("127.0.0.1", urlsplit(address).port, context=trusting)
        line.request("GET", "/")
        answer = line.getresponse()
        assert (answer.status, b"password" in answer.read()) == (403, True)
        line.close()
    finally:
        process.send_signal(signal.SIGINT)
        out, err = ended(process)
    assert (process.returncode, err) == (0, "")
    assert PASSWORD not in out


def test_the_command_refuses_in_one_sentence(home: Home, tmp_path: Path) -> None:
    """No home, a password without others, others without a password: one sentence each, and nothing is served."""
    nowhere = Home(tmp_path / "nowhere")
    assert "no recordings found" in refused(nowhere)
    file = tmp_path / "password"
    file.write_text("")
    assert "--password-file: requires --allow-remote" in refused(home, "--password-file", str(file))
    assert "without a password" in refused(home, "--allow-remote", "localhost")
    assert "without a password" in refused(
        home, "--allow-remote", "localhost", "--password-file", str(file)
    )
    file.write_bytes(b"\xff\xfe")
    assert "expected UTF-8 text" in refused(
        home, "--allow-remote", "localhost", "--password-file", str(file)
    )
    file.write_text(f"{PASSWORD}\n")
    assert "would be sent unencrypted" in refused(
        home, "--allow-remote", "localhost", "--password-file", str(file)
    )
    assert not (nowhere.path).exists()


def test_a_package_that_is_missing_is_named(home: Home) -> None:
    """Without the extra the command says what to install, in one sentence."""
    code = (
        "import sys; sys.modules['starlette'] = None; from agentobs.cli import main; "
        f"main(['--home', {str(home.path)!r}, 'dashboard'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'agentobs-kit[dashboards]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_browser_is_led_there_without_telling_other_users(home: Home, tmp_path: Path) -> None:
    """The address with its token is in no argument of the browser, but in a file that only we can read."""
    told = tmp_path / "told"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\nf=\"${{1#file://}}\"\necho \"$1\" > {told}.part\nstat -c %a \"$f\" >> {told}.part\n"
                       f"cat \"$f\" >> {told}.part\nmv {told}.part {told}\n")  # fmt: skip
    browser.chmod(0o700)
    process = started(home, "--port", "0", "--open", BROWSER=f"{browser} %s")
    try:
        address = address_of(process)
        while not told.exists():
            assert process.poll() is None
        argument, mode, *page = told.read_text().splitlines()
    finally:
        process.send_signal(signal.SIGINT)
        ended(process)
    assert argument.startswith("file://")
    assert "token" not in argument
    assert mode == "600"
    assert f'content="0; url={address}"' in page[0]
    assert not Path(argument.removeprefix("file://")).exists()


def test_many_readers_are_answered_with_few_threads(home: Home) -> None:
    """Forty requests at once are all answered, and no more threads than THREADS make pages."""
    statuses: list[int] = []
    with opened(home) as client:
        before = threading.active_count()

        def read() -> None:
            statuses.append(client.get("/").status)

        threads = [threading.Thread(target=read) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert threading.active_count() <= before + server.THREADS
    assert statuses == [200] * 40


def test_no_page_shows_a_traceback(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of ours is told with its kind and place, in the page and in the terminal, without what it was about."""
    with opened(home) as client:
        got = client.get("/sessions/" + "a" * 32)
        assert got.status == 404
        assert "Traceback" not in got.words
        with pytest.MonkeyPatch.context() as patched:

            def fails(*_: object) -> None:
                raise ValueError("a-secret-value")

            patched.setattr("dashboards.app.session_list.choices_of", fails)
            broken = client.get("/")
    assert broken.status == 500
    assert "ValueError at test_server.py" in broken.words
    assert "a-secret-value" not in broken.html
    printed = capsys.readouterr()
    assert "a-secret-value" not in printed.out + printed.err
    assert "a page failed: ValueError" in printed.err
