"""Torture case 38: nothing leaves a replay, whoever tries, and the report says who."""

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

AWAY = "203.0.113.7"
"""An address that nobody has (RFC 5737)."""


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("weather"))


def over_httpx() -> None:
    httpx2.get(f"http://{AWAY}/", timeout=1)


def over_requests() -> None:
    requests.get(f"http://{AWAY}/", timeout=1)


def over_urllib() -> None:
    urllib.request.urlopen(f"http://{AWAY}/", timeout=1)


def over_aiohttp() -> None:
    async def get() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://{AWAY}/")

    asyncio.run(get())


def by_name() -> None:
    async def look_up() -> None:
        await asyncio.get_running_loop().getaddrinfo("model.example", 443)

    asyncio.run(look_up())


def raw() -> None:
    with socket.socket() as made:
        made.connect((AWAY, 443))


def raw_6() -> None:
    with socket.socket(socket.AF_INET6) as made:
        made.connect_ex(("2001:db8::7", 443))


def datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", (AWAY, 53))


def message() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendmsg([b"x"], [], 0, (AWAY, 53))


def looked_up() -> None:
    socket.gethostbyname("model.example")


WAYS = (
    *(over_httpx, over_requests, over_urllib, over_aiohttp),
    *(by_name, raw, raw_6, datagram, message, looked_up),
)


@pytest.mark.parametrize("way", WAYS)
def test_38_a_connection_fails_and_says_who_tried(
    fixture: Fixture, way: Callable[[], None]
) -> None:
    """Whatever library asks, the replay fails, even where the agent swallows it, and names the line that asked."""

    def agent(prompt: str) -> Any:
        try:
            way()
        except Exception:
            pass
        return Agent().answer(prompt)

    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        replayed.run(agent, "How is it?")
    found = raised.value.divergence
    assert found.kind == "network"
    host = "model.example" if "name" in way.__name__ or way is looked_up else AWAY
    assert ("2001:db8::7" if way is raw_6 else host) in found.summary
    first, last = way.__code__.co_firstlineno, max(n for *_, n in _lines(way) if n)
    file, line = found.summary.partition(" by ")[2].partition(" in ")[0].rsplit(":", 1)
    assert Path(file) == Path(__file__).relative_to(Path.cwd())
    assert first < int(line) <= last


def _lines(function: Callable[..., Any]) -> list[Any]:
    inner = [c for c in function.__code__.co_consts if hasattr(c, "co_lines")]
    return [line for code in (function.__code__, *inner) for line in code.co_lines()]


def test_38_children_are_told_of_a_proxy_that_refuses(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However a child is started, and whatever environment it is given; afterwards all is as it was."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("https_proxy", "http://mine.example:1")
    before, init = dict(os.environ), subprocess.Popen.__init__
    names = "('https_proxy', 'ALL_PROXY', 'NO_PROXY')"
    show = [sys.executable, "-S", "-c", f"import os; print(*map(os.environ.get, {names}))"]
    told: list[str] = []

    async def later() -> str:
        made = await asyncio.create_subprocess_exec(*show, stdout=asyncio.subprocess.PIPE)
        return (await made.communicate())[0].decode()

    def agent(prompt: str) -> Any:
        told.append(subprocess.run(show, capture_output=True, text=True).stdout)
        told.append(subprocess.check_output(show, env={"NO_PROXY": "*"}, text=True))
        told.append(asyncio.run(later()))
        assert os.environ["https_proxy"] == "http://mine.example:1"
        assert os.system(f"{shlex.join(show)} > {tmp_path}/shown") == 0
        told.append((tmp_path / "shown").read_text())
        refused.append(told[0].split()[0])
        return Agent().answer(prompt)

    refused: list[str] = []
    with Replayer(fixture) as replayed:
        replayed.run(agent, "How is it?")
        host, port = refused[0].removeprefix("http://").split(":")
    assert len(set(told)) == 1
    assert told[0].split() == [refused[0], refused[0]]
    assert host == "127.0.0.1"
    with socket.socket() as made:
        assert made.connect_ex((host, int(port))) != 0
    assert dict(os.environ) == before
    assert subprocess.Popen.__init__ is init


def test_38_a_replay_may_let_connections_out(fixture: Fixture) -> None:
    """With `network=True` nobody refuses, and children get what they had."""

    def agent(prompt: str) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        return Agent().answer(prompt)

    with Replayer(fixture, ReplayOptions(network=True)) as replayed:
        replayed.run(agent, "How is it?")


def test_38_unix_sockets_and_pairs_are_let_through(fixture: Fixture, tmp_path: Path) -> None:
    """They end on this machine: an event loop, a pool of processes and a child's answers need them."""

    def agent(prompt: str) -> Any:
        path = str(tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as made:
            server.bind(path)
            server.listen()
            made.connect(path)
        return Agent().answer(prompt)

    with Replayer(fixture) as replayed:
        replayed.run(agent, "How is it?")
