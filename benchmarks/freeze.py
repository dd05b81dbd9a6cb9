"""The cost of `agentobs freeze` with its check, compared with a run of the agent, each in a separate process."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path

from agentobs.cli.demo.provider import recording
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange
from benchmarks.measure import Cost, Round, compare, milliseconds, ratio
from benchmarks.report import Section, Verdict

ROUNDS = 7
AGENT, UNCHECKED, CHECKED = "the agent", "freeze --no-check", "freeze"
MAX_ADDED_SECONDS = 1.0
"""The target: the maximum CPU time of `freeze` in addition to twice the CPU time of the agent."""

PLAIN = """
import agentobs
from anthropic import Anthropic


@agentobs.session("agent")
def answer(prompt):
    client = agentobs.record(Anthropic())
    messages = [{"role": "user", "content": prompt}]
    while True:
        with client.messages.stream(model="claude-sonnet-5", max_tokens=99, messages=messages) as stream:
            message = stream.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return message.content[0].text
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "lost"} for call in calls]
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in message.content]},
            {"role": "user", "content": results},
        ]
"""
FRAMEWORK = """
import agentobs
from anthropic import AsyncAnthropic
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider


@agentobs.session("agent")
def answer(prompt):
    provider = AnthropicProvider(anthropic_client=agentobs.record(AsyncAnthropic()))
    agent = Agent(AnthropicModel("claude-sonnet-5", provider=provider))
    for tool in ("lookup_order", "lookup_policy", "issue_refund"):
        agent.tool_plain(name=tool)(lambda order_id="", carrier="", amount="": "lost")
    return agent.run_sync(prompt).output
"""
LOOP = files("agentobs.cli.demo").joinpath("refund_agent.py").read_text(encoding="utf-8")
AGENTS = {
    "the SDK alone": (PLAIN, "agent.answer('Refund me.')"),
    "the loop of agentobs (the demo)": (LOOP, "asyncio.run(agent.answer('Refund me.'))"),
    "pydantic-ai": (FRAMEWORK, "agent.answer('Refund me.')"),
}


def sections() -> Iterator[Section]:
    """Measure the cost of freezing sessions of several kinds of agents."""
    measured: dict[str, list[Round]] = {}
    for name, (source, call) in AGENTS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            (path / "agent.py").write_text(source, encoding="utf-8")
            _run(path, call)
            variants = {
                AGENT: partial(_agent, path, call),
                UNCHECKED: partial(_freeze, path, ["--no-check"]),
                CHECKED: partial(_freeze, path, []),
            }
            measured[name] = compare(variants, range(ROUNDS))
    yield _section(measured)


def _agent(folder: Path, call: str, _: int) -> Cost:
    """Return the cost of a recorded run of the agent, whose recording is not used."""
    return _cost(lambda: _run(folder, call, "other"))


def _freeze(folder: Path, options: list[str], _: int) -> Cost:
    """Return the cost of freezing the session into a new folder."""
    name = "refund-loop" if "refund-loop" in (folder / "agent.py").read_text() else "agent"
    command = [sys.executable, "-m", "agentobs", "--home", "home", "freeze", name, *options]
    shutil.rmtree(folder / "fixtures", ignore_errors=True)

    def work() -> None:
        completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert ("replays: yes" in completed.stdout) is not bool(options), completed.stdout

    return _cost(work)


def _run(folder: Path, call: str, home: str = "home") -> None:
    """Run and record the agent in a separate process; the provider returns the successful responses of the demo."""
    demo = recording()
    successful = tuple(
        each
        for each in demo.exchanges
        if isinstance(each, ModelExchange) and each.answer.status == 200
    )
    served = dataclasses.replace(demo, exchanges=successful)
    with ServedProvider(served, ServeOptions(match="order")) as provider:
        provider_environ = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "made-up"}
        subprocess.run(
            [sys.executable, "-c", f"import agent, asyncio; {call}"],
            cwd=folder,
            env={**os.environ, **provider_environ, "AGENTOBS_HOME": home, "NO_PROXY": "127.0.0.1"},
            check=True,
        )


def _cost(work: Callable[[], None]) -> Cost:
    cpu, wall = _children_ns(), time.perf_counter_ns()
    work()
    return Cost(wall_ns=time.perf_counter_ns() - wall, process_ns=_children_ns() - cpu)


def _children_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def _section(measured: dict[str, list[Round]]) -> Section:
    rows, verdicts = [], []
    for name, rounds in measured.items():
        agent_ms = milliseconds(rounds, AGENT, "process_ns")
        plain, checked = (ratio(rounds, each, AGENT, "process_ns") for each in (UNCHECKED, CHECKED))
        wall = ratio(rounds, CHECKED, AGENT, "wall_ns")
        added_s = milliseconds(rounds, CHECKED, "process_ns") / 1e3 - 2 * agent_ms / 1e3
        rows.append(
            (
                name,
                f"{agent_ms:.0f}",
                f"{plain:.2f}",
                f"{checked:.2f}",
                f"{added_s:.2f}",
                f"{wall:.2f}",
            )
        )
        label = f"freeze with its check, CPU in addition to twice that of the agent: {name}"
        verdicts.append(Verdict(label, MAX_ADDED_SECONDS, added_s, "{:.2f} s", _SLOW))
    return Section(
        "Freeze with its check",
        f"{ROUNDS} rounds of one process each, including its child processes. The check replays the fixture in two "
        "processes, and each of them imports the SDK and the agent. These imports take most of the time of an agent.",
        (
            "agent",
            "agent, CPU, ms",
            "freeze --no-check, x agent",
            "freeze, x agent",
            "in addition to twice the agent, s",
            "freeze, wall, x agent",
        ),
        tuple(rows),
        tuple(verdicts),
    )


_SLOW = "On this machine, importing the SDK or the agent takes longer than running the agent."
