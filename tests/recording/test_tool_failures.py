"""Why a tool call failed: how, the class of the exception, and the line of the program's own code."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agentobs
from agentobs.agent import AgentOptions, Consent, Reply, tool
from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.provider.dialect import Block
from agentobs.recording.facts.tool_failures import cause_of_result, class_in_text
from agentobs.recording.journal.home import open_home
from agentobs.recording.session import stop_recorder
from agentobs.records.exchanges import ErrorCause
from agentobs.records.labels import Label
from agentobs.tracing.raised_errors import origin, raised_error
from tests import queries
from tests.agent.provider import MODEL, Provider, call, message, streamed, text
from tests.store.recordings import a_home, record
from tests.store.wire_conversations import WireConversation
from tests.wire import corpus
from tests.write_diagnose import TRANSCRIPTS, has_corpora, record_wire

ORDERS = """
import json

class NoStock(Exception):
    pass

def find(order):
    if order == "stock":
        raise NoStock("the customer's text")
    if order == "json":
        json.loads("{")
    raise ValueError(f"no order {order}")
"""
NEEDS_CORPORA = pytest.mark.skipif(
    not has_corpora(),
    reason="no recorded traffic or no logs: set AGENTOBS_WIRE and AGENTOBS_TRANSCRIPTS",
)
FIELDS = "error_origin, error_class, error_file, error_line, outcome"


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the agent's own project, which is the current directory."""
    folder = tmp_path / "project" / "shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "orders.py").write_text(ORDERS)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    yield importlib.import_module("shop.orders")
    for name in ("shop", "shop.orders"):
        sys.modules.pop(name, None)


def failed_calls(home: Path) -> list[tuple[Any, ...]]:
    return queries.query(f"SELECT {FIELDS} FROM tool_results ORDER BY result_ns", home=home)


def test_a_recorded_function_has_class_and_line(orders: ModuleType, tmp_path: Path) -> None:
    """The facts of a failed call contain the class of the exception, and the line of the innermost own frame: an
    exception of a library is attributed to the line that called the library.
    """
    find = agentobs.record_tool(orders.find)
    assert agentobs.start(str(tmp_path / "home"))
    with agentobs.session("shop"):
        for order in ("stock", "json", "17"):
            with pytest.raises(Exception, match=r"customer|property|no order"):
                find(order)
    stop_recorder()
    place = "shop/orders.py"
    assert failed_calls(tmp_path / "home") == [
        ("raised", "NoStock", place, 9, "failed"),
        ("raised", "JSONDecodeError", place, 11, "failed"),
        ("raised", "ValueError", place, 12, "failed"),
    ]


def test_the_loop_records_how_a_call_failed(orders: ModuleType, tmp_path: Path) -> None:
    """Calls of the agent loop are raised, refused by a person or an invalid input, or stopped by their timeout."""

    @tool(read_only=True)
    def lookup(order: str) -> str:
        """Look up an order."""
        return str(orders.find(order))

    @tool(read_only=True, timeout_s=0.01)
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    @tool
    def pay(to: str) -> str:
        """Pay."""
        return to

    async def person(consent: Consent) -> Reply:
        return Reply(allow=False, reason="no")

    calls = (
        call("t1", "lookup", order="17"), call("t2", "lookup", wrong=1), call("t3", "wait"),
        call("t4", "pay", to="Mallory"), call("t5", "nothing"),
    )  # fmt: skip
    given = [streamed(message(*calls, stop_reason="tool_use")), streamed(message(text("Done.")))]

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            options = AgentOptions(model=MODEL, cache=None)
            tools = [lookup, wait, pay]
            agent = agentobs.Agent(
                agentobs.record(client), options=options, tools=tools, person=person
            )
            with agentobs.session("loop"):
                await agent.run("Go")

    assert agentobs.start(str(tmp_path / "home"))
    with Provider(given) as provider:
        asyncio.run(go(provider))
    stop_recorder()
    rows = queries.query(
        f"SELECT tool_use_id, {FIELDS} FROM tool_results ORDER BY tool_use_id",
        home=tmp_path / "home",
    )
    assert rows == [
        ("t1", "raised", "ValueError", "shop/orders.py", 12, "failed"),
        ("t2", "refused", None, None, None, "invalid"),
        ("t3", "stopped", None, None, None, "timeout"),
        ("t4", "refused", None, None, None, "denied"),
        ("t5", "refused", None, None, None, "unknown"),
    ]


def test_a_session_has_its_exception(orders: ModuleType, tmp_path: Path) -> None:
    """The end of a session contains the class and the line of the exception that left it, or that was declared."""
    assert agentobs.start(str(tmp_path / "home"))
    with pytest.raises(ValueError, match="no order"), agentobs.session("left"):
        orders.find("17")
    with agentobs.session("declared") as session:
        try:
            orders.find("stock")
        except orders.NoStock as error:
            session.fail(error)
    with agentobs.session("text") as session:
        session.fail("the customer's words")
    with agentobs.session("fine"):
        pass
    stop_recorder()
    rows = queries.query(
        "SELECT outcome, error_class, error_file, error_line FROM session_ends ORDER BY ended_ns",
        home=tmp_path / "home",
    )
    assert rows == [
        ("failed", "ValueError", "shop/orders.py", 12),
        ("failed", "NoStock", "shop/orders.py", 9),
        ("failed", None, None, None),
        ("completed", None, None, None),
    ]


def test_the_signature_names_the_same_function_as_the_place(
    orders: ModuleType, tmp_path: Path
) -> None:
    """If the standard library raised an exception, signature and place name the program's own code that called it."""
    assert agentobs.start(str(tmp_path / "home"))
    with pytest.raises(json.JSONDecodeError), agentobs.session("raised"):
        orders.find("json")
    stop_recorder()
    [row] = queries.query(
        "SELECT signature, error_file, error_line FROM session_ends", home=tmp_path / "home"
    )
    assert row == ("exception:JSONDecodeError@shop.orders:find", "shop/orders.py", 11)
    with pytest.raises(ValueError, match="17") as caught:
        next(orders.find(each) for each in ("17",))
    assert origin(caught.value) == "ValueError@shop.orders:find"


def raised_by(function: Any, *arguments: Any) -> ErrorCause:
    with pytest.raises(Exception) as caught:
        function(*arguments)
    return raised_error(caught.value)


def test_only_certain_names_are_labels(orders: ModuleType, tmp_path: Path) -> None:
    """A path is a label only if it repeats the name of an imported module, and a class name only if a module declares
    the class. Other names become digests.
    """
    certain = raised_by(orders.find, "17")
    assert (type(certain.name), type(certain.file)) == (Label, Label)
    script = tmp_path / "project" / "anna@example.com.py"
    script.write_text(ORDERS)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    uncertain = raised_by(names["find"], "17")
    assert (type(uncertain.name), type(uncertain.file)) == (Label, str)
    assert (uncertain.file, uncertain.line) == ("anna@example.com.py", 12)
    invented = type("Anna", (Exception,), {})

    def fail() -> None:
        raise invented

    assert type(raised_by(fail).name) is str
    elsewhere = raised_by(json.loads, "{")
    assert str(elsewhere.file).endswith("recording/test_tool_failures.py")


def test_a_path_in_a_fact_is_a_digest_with_its_text_in_the_vault(tmp_path: Path) -> None:
    """The facts contain no path that a person chose; local commands can still show it."""
    script = tmp_path / "anna@example.com.py"
    script.write_text(ORDERS)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    find = agentobs.record_tool(names["find"])
    assert agentobs.start(str(tmp_path / "home"))
    with pytest.raises(ValueError, match="17"), agentobs.session("script"):
        find("17")
    stop_recorder()
    home = open_home(tmp_path / "home")
    [[in_call]] = queries.query("SELECT error_file FROM tool_results", home=home.path)
    [[in_end]] = queries.query("SELECT error_file FROM session_ends", home=home.path)
    assert in_call.startswith("digest:")
    assert in_call == in_end
    facts = [path for path in home.path.rglob("*.facts*") if path.is_file()]
    assert facts
    assert not any(b"anna" in path.read_bytes() for path in facts)


@pytest.mark.parametrize(
    ("words", "how", "name"),
    [
        ("ValueError: no order 17", "returned", "ValueError"),
        ("lookup failed with KeyError: 'x'", "returned", "KeyError"),
        ("ValueError('no order')", "returned", "ValueError"),
        (
            "Traceback ...\nKeyError: 1\n\nDuring ...\nRuntimeError: broken",
            "returned",
            "RuntimeError",
        ),
        ("my.ValueErrors: nothing", "returned", None),
        ("The user doesn't want to proceed with this tool use.", "refused", None),
        ("it is a ValueError of sorts", "returned", None),
    ],
)
def test_the_words_of_a_result_show_how_it_failed(words: str, how: str, name: str | None) -> None:
    """If only the result of a call is known, its words show a denial, and the class of a built-in exception."""
    block = Block("result", "tool_result", id="t1", text=words, value=words, is_error=True)
    assert cause_of_result(block) == ErrorCause(how, name)  # type: ignore[arg-type]
    assert class_in_text(words) == name


def test_a_result_in_the_next_request_shows_how_it_failed(tmp_path: Path) -> None:
    """The call of a client without agentobs is `returned` or `refused`; a result without an error has no cause."""
    home, talk = a_home(tmp_path), WireConversation(1)
    calls = talk.calls(("a", {}), ("b", {}), ("c", {}))
    talk.result(calls[0], "ValueError: no", is_error=True)
    talk.result(calls[1], "The tool use was rejected", is_error=True)
    talk.result(calls[2], "ValueError: no")
    talk.says("Hm.")
    record(home, talk.whole())
    assert set(failed_calls(home.path)) == {
        ("returned", "ValueError", None, None, "failed"),
        ("refused", None, None, None, "failed"),
        (None, None, None, None, "executed"),
    }


@pytest.mark.slow
@NEEDS_CORPORA
def test_each_error_in_recorded_traffic_has_a_cause(tmp_path: Path) -> None:
    """Every tool result that is marked as an error in the recorded traffic is `returned` or `refused`, and no other
    result is.
    """
    home, names = record_wire(tmp_path)
    rows = queries.query(
        "SELECT is_error, error_origin, count(*) FROM tool_results GROUP BY ALL", home=home.path
    )
    assert {(is_error, origin) for is_error, origin, _ in rows} == {
        (False, None),
        (True, "returned"),
    }
    assert len(names) == len(corpus.files())


@pytest.mark.slow
@NEEDS_CORPORA
def test_each_error_in_a_log_has_a_cause(tmp_path: Path) -> None:
    """Every failed call of an imported log is `returned` or `refused`."""
    home = a_home(tmp_path)
    import_logs(home, logs_in([TRANSCRIPTS]), remove_session=lambda *_: None)
    rows = queries.query(
        "SELECT outcome, error_origin, count(*) FROM tool_results WHERE is_error GROUP BY ALL",
        home=home.path,
    )
    assert rows
    assert {origin for _, origin, _ in rows} == {"returned", "refused"}
