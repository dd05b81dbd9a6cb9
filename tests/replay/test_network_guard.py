"""The network guard: a replay makes no connections, and the report names the caller."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
import requests

from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from tests.replay.agents import Agent, weather

UNUSED_ADDRESS = "203.0.113.7"
"""A reserved address without a host (RFC 5737)."""


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("weather"))


def over_httpx() -> None:
    httpx2.get(f"http://{UNUSED_ADDRESS}/", timeout=1)


def over_requests() -> None:
    requests.get(f"http://{UNUSED_ADDRESS}/", timeout=1)


def over_urllib() -> None:
    urllib.request.urlopen(f"http://{UNUSED_ADDRESS}/", timeout=1)


def over_aiohttp() -> None:
    async def get() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://{UNUSED_ADDRESS}/")

    asyncio.run(get())


def by_name() -> None:
    async def look_up() -> None:
        await asyncio.get_running_loop().getaddrinfo("model.example", 443)

    asyncio.run(look_up())


def over_ipv4() -> None:
    with socket.socket() as client:
        client.connect((UNUSED_ADDRESS, 443))


def over_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as client:
        client.connect_ex(("2001:db8::7", 443))


def datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", (UNUSED_ADDRESS, 53))


def message() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendmsg([b"x"], [], 0, (UNUSED_ADDRESS, 53))


def looked_up() -> None:
    socket.gethostbyname("model.example")


CONNECTIONS = (
    *(over_httpx, over_requests, over_urllib, over_aiohttp),
    *(by_name, over_ipv4, over_ipv6, datagram, message, looked_up),
)


@pytest.mark.slow
@pytest.mark.parametrize("connect", CONNECTIONS)
def test_a_connection_fails_and_names_the_caller(
    fixture: Fixture, connect: Callable[[], None]
) -> None:
    """A connection with any library fails the replay, even if the agent catches the error, and the report names the
    line.
    """

    def agent(prompt: str) -> Any:
        try:
            connect()
        except Exception:
            pass
        return Agent().answer(prompt)

    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        replayed.run(agent, "How is it?")
    found = raised.value.divergence
    assert found.kind == "network"
    host = "model.example" if "name" in connect.__name__ or connect is looked_up else UNUSED_ADDRESS
    assert ("2001:db8::7" if connect is over_ipv6 else host) in found.summary
    first, last = connect.__code__.co_firstlineno, max(n for *_, n in _lines(connect) if n)
    file, line = found.summary.partition(" by ")[2].partition(" in ")[0].rsplit(":", 1)
    assert Path(file) == Path(__file__).relative_to(Path.cwd())
    assert first < int(line) <= last


def _lines(function: Callable[..., Any]) -> list[Any]:
    inner = [c for c in function.__code__.co_consts if hasattr(c, "co_lines")]
    return [line for code in (function.__code__, *inner) for line in code.co_lines()]


def test_children_get_a_proxy_that_rejects_connections(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However a child process is started, its environment contains a proxy that rejects connections until the replay
    ends.
    """
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("https_proxy", "http://mine.example:1")
    before, init = dict(os.environ), subprocess.Popen.__init__
    names = "('https_proxy', 'ALL_PROXY', 'NO_PROXY')"
    show = [sys.executable, "-S", "-c", f"import os; print(*map(os.environ.get, {names}))"]
    outputs: list[str] = []

    async def later() -> str:
        child = await asyncio.create_subprocess_exec(*show, stdout=asyncio.subprocess.PIPE)
        return (await child.communicate())[0].decode()

    def agent(prompt: str) -> Any:
        outputs.append(subprocess.run(show, capture_output=True, text=True).stdout)
        outputs.append(subprocess.check_output(show, env={"NO_PROXY": "*"}, text=True))
        outputs.append(asyncio.run(later()))
        assert os.environ["https_proxy"] == "http://mine.example:1"
        assert os.system(f"{shlex.join(show)} > {tmp_path}/shown") == 0
        outputs.append((tmp_path / "shown").read_text())
        refused.append(outputs[0].split()[0])
        return Agent().answer(prompt)

    refused: list[str] = []
    with Replayer(fixture) as replayed:
        replayed.run(agent, "How is it?")
        host, port = refused[0].removeprefix("http://").split(":")
    assert len(set(outputs)) == 1
    assert outputs[0].split() == [refused[0], refused[0]]
    assert host == "127.0.0.1"
    with socket.socket() as child:
        assert child.connect_ex((host, int(port))) != 0
    assert dict(os.environ) == before
    assert subprocess.Popen.__init__ is init


def test_a_replay_can_allow_connections(fixture: Fixture) -> None:
    """With `network=True`, the agent can make connections."""

    def agent(prompt: str) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        return Agent().answer(prompt)

    with Replayer(fixture, ReplayOptions(network=True)) as replayed:
        replayed.run(agent, "How is it?")


def test_unix_sockets_and_socket_pairs_are_allowed(fixture: Fixture, tmp_path: Path) -> None:
    """Unix sockets and socket pairs are allowed, because event loops, process pools and child processes need them."""

    def agent(prompt: str) -> Any:
        path = str(tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path)
            server.listen()
            client.connect(path)
        return Agent().answer(prompt)

    with Replayer(fixture) as replayed:
        replayed.run(agent, "How is it?")
