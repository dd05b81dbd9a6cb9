"""Permissions in the loop: decisions, approvals, texts for the model, and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentobs.agent.events import Permission, ToolDone
from agentobs.agent.execution.live_answers import Consent, Reply
from agentobs.agent.permissions import Permissions, Rule
from agentobs.agent.run_result import Denial
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import ToolExchange, WorldExchange
from agentobs.records.facts import Permission as PermissionFact

from .agent_runs import events_of, of_kind, recorded, result_of, spans
from .provider import Provider, call, message, streamed, text

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


@tool(tool_class="edit", paths=("file",), subject="file")
def edit(file: str) -> str:
    """Edit a file."""
    return f"edited {file}"


def rule(text: str, behavior: Any = "allow", source: Any = "user") -> Rule:
    return Rule.parse(text, behavior, source)


def decisions(records: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (p.tool_use_id, p.behavior, p.reason_type, p.source, p.resolver, p.approval_requested)
        for p in of_kind(records, PermissionFact)
    ]


def test_without_a_person_the_call_is_denied() -> None:
    """Without a person, a call that needs approval is denied, and the model gets the reason."""
    call_message = message(call("a", "look", where="box"), call("b", "write", what="x"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(provider, tools=[look, write], permissions=Permissions())
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["executed", "denied"]
    denied = provider.requests[1]["messages"][2]["content"][1]
    assert denied["is_error"] is True
    assert result_of(events).denials == (Denial("b", "write", denied["content"]),)
    assert [(behavior, resolver) for _, behavior, _, _, resolver, _ in decisions(records)] == [
        ("allow", "mode"),
        ("deny", "unattended"),
    ]
    (consent,) = of_kind(records, WorldExchange)
    assert (consent.question.kind, consent.question.key) == ("consent", "b")
    assert [e.answer.outcome for e in of_kind(records, ToolExchange)] == ["executed", "denied"]


def test_a_call_waits_for_approval() -> None:
    """A person who approves a call gets its tool, input and reason; the wait has a span and is part of the decision."""
    seen: list[Consent] = []

    def person(consent: Consent) -> Reply:
        seen.append(consent)
        return Reply(False, reason="Not on a Sunday.")

    call_message = message(call("a", "write", what="x"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider, tools=[write], permissions=Permissions(), world={"person": person}
        )
    assert seen[0].about == {"tool": "write", "input": {"what": "x"}}
    assert seen[0].reason
    (denial,) = of_kind(events, Permission)
    assert (denial.decision.behavior, denial.decision.resolver) == ("deny", "person")
    assert denial.waited_ns > 0
    assert "Not on a Sunday." in provider.requests[1]["messages"][2]["content"][0]["content"]
    assert ("blocked_on_user", "write", "tool", "ok") in spans(records)
    assert decisions(records) == [("a", "deny", "person", None, "person", True)]


def test_a_grant_is_valid_for_the_conversation() -> None:
    """After a session grant, the same call needs no approval, even in the next run; a call with other input does."""
    inputs: list[Any] = []

    async def person(consent: Consent) -> Reply:
        inputs.append(consent.about["input"])
        return Reply(True, scope="session")

    conversation = Conversation()
    world = {"person": person}
    same, other = call("b", "write", what="x"), call("c", "write", what="y")
    replies = [
        streamed(message(call("a", "write", what="x"), same)),
        streamed(DONE),
        streamed(message(call("d", "write", what="x"), other)),
        streamed(DONE),
    ]
    with Provider(replies) as provider, recorded() as records:
        for _ in range(2):
            events_of(
                provider,
                tools=[write],
                permissions=Permissions(),
                world=world,
                conversation=conversation,
            )
    assert inputs == [{"what": "x"}, {"what": "y"}]
    assert len(conversation.grants) == 2
    assert [(d[0], d[2], d[3]) for d in decisions(records)] == [
        ("a", "person", "session"),
        ("b", "rule", "session"),
        ("d", "rule", "session"),
        ("c", "person", "session"),
    ]


def test_an_approval_request_that_raises() -> None:
    """If an approval request raises an exception, the call is denied, and the loop continues."""

    def person(consent: Consent) -> bool:
        raise RuntimeError("no terminal")

    call_message = message(call("a", "write", what="x"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[write], permissions=Permissions(), world={"person": person}
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["denied"]
    assert result_of(events).subtype == "success"


def test_rules_precede_approvals() -> None:
    """Deny rules precede ask rules, ask rules precede allow rules, and each decision has the source of its rule."""
    permissions = Permissions(
        rules=(
            rule("write", "allow", "project"),
            rule("write(secret*)", "deny", "policy"),
            rule("write(big*)", "ask", "user"),
        )
    )
    call_message = message(*(call(w, "write", what=w) for w in ("small", "secret1", "big1")))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, tools=[write], permissions=permissions)
    assert decisions(records) == [
        ("small", "allow", "rule", "project", "rule", False),
        ("secret1", "deny", "rule", "policy", "rule", False),
        ("big1", "deny", "rule", "user", "unattended", True),
    ]


def test_no_mode_allows_a_path_outside_the_roots(tmp_path: Path) -> None:
    """In any mode, a path that leads out of the roots through a link is denied without an approval request."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "door").symlink_to(outside)
    call_message = message(
        call("a", "edit", file="notes.txt"),
        call("b", "edit", file="door/notes.txt"),
        call("c", "edit", file="../outside/notes.txt"),
    )
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(provider, tools=[edit], world={"roots": (root,)})
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == [
        "executed",
        "denied",
        "denied",
    ]
    assert [d[2] for d in decisions(records)][1:] == ["safety_check", "safety_check"]
    exchanges = [e for e in of_kind(records, WorldExchange) if e.question.kind == "path"]
    assert [(e.question.key, [p["inside"] for p in e.answer]) for e in exchanges] == [
        ("a", [True]),
        ("b", [False]),
        ("c", [False]),
    ]


def test_a_denied_reader_does_not_start_early() -> None:
    """A reader that is not clearly permitted does not start while the response is still arriving."""
    permissions = Permissions(rules=(rule("look", "deny"),))
    call_message = message(call("a", "look", where="box"), text("So"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look], permissions=permissions)
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["denied"]
    assert len(of_kind(events, Permission)) == 1
