"""The system prompt: levels, static and volatile sections, and the source of their texts."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent import Conversation, Section, SettingHeld, SystemPrompt, tool
from agentobs.agent.model.prompt import rendered
from agentobs.errors import UsageError
from agentobs.records.exchanges import WorldExchange

from .agent_runs import events_of, of_kind, recorded, result_of
from .provider import Provider, call, message, streamed, text

LEVELS = ("default", "custom", "agent", "coordinator", "override")


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return "nothing"


def block(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def done(count: int = 1) -> list[Any]:
    return [streamed(message(text("Done.")))] * count


@pytest.mark.parametrize("highest", range(len(LEVELS)))
def test_the_highest_level_is_used(highest: int) -> None:
    """The highest level of the system prompt is used and all lower levels are ignored; the tail is appended unless the
    level is an override.
    """
    levels = {name: f"I am the {name}." for name in LEVELS[: highest + 1]}
    result = rendered(SystemPrompt(**levels, append="And be brief."), {})
    tail = "" if LEVELS[highest] == "override" else "\n\nAnd be brief."
    assert result.blocks == [block(f"I am the {LEVELS[highest]}.{tail}")]


def test_volatile_sections_follow_static_sections() -> None:
    """Static sections form the first block, in order; volatile sections form the next block, which ends with
    the tail.
    """
    prompt = SystemPrompt(
        default=(
            Section("who", "You sell tea."),
            Section("stock", "12 bags.", volatile=True, reason="it is sold while we talk"),
            Section("how", "Be kind."),
            Section("nothing", "  "),
        ),
        append="Never lie.",
    )
    result = rendered(prompt, {})
    assert result.static == (block("You sell tea.\n\nBe kind."),)
    assert result.dynamic == (block("12 bags.\n\nNever lie."),)


def test_a_volatile_section_needs_a_reason() -> None:
    """A volatile section without a reason is rejected, and so are two sections with the same name."""
    for reason in (None, " "):
        with pytest.raises(UsageError, match="volatile, but has no reason"):
            Section("clock", "noon", volatile=True, reason=reason)
    with pytest.raises(UsageError, match="not volatile"):
        Section("clock", "noon", reason="time passes")
    with pytest.raises(UsageError, match="the same name: who"):
        SystemPrompt(custom=(Section("who", "me"), Section("who", "you")))


def test_section_texts_come_from_the_world() -> None:
    """The world provides the text of a static section once per conversation, and of a volatile section in each turn."""
    requested: list[str] = []

    def tree() -> str:
        requested.append("tree")
        return "main.py"

    async def clock() -> str:
        requested.append("clock")
        return f"It is {len(requested)} o'clock."

    prompt = SystemPrompt(
        default=(
            Section("tree", tree),
            Section("clock", clock, volatile=True, reason="time passes"),
        )
    )
    conversation = Conversation()
    first = streamed(message(call("a", "look", where="box")))
    with Provider([first, *done(2)]) as provider, recorded() as records:
        for words in ("Hello", "Again"):
            result_of(
                events_of(
                    provider,
                    words,
                    tools=[look],
                    conversation=conversation,
                    system=prompt,
                    world={"sections": prompt.function_sections},
                )
            )
    assert requested == ["tree", "clock", "clock", "clock"]
    assert [r["system"] for r in provider.requests] == [
        [block("main.py"), block(f"It is {hour} o'clock.")] for hour in (2, 3, 4)
    ]
    exchanges = [r for r in records if isinstance(r, WorldExchange)]
    assert [(r.question.kind, r.question.key, r.answer) for r in exchanges] == [
        ("section", "tree", "main.py"),
        ("section", "1:clock", "It is 2 o'clock."),
        ("section", "2:clock", "It is 3 o'clock."),
        ("section", "3:clock", "It is 4 o'clock."),
    ]


@pytest.mark.filterwarnings("ignore:agentobs. the section git")
def test_a_failing_section_is_omitted() -> None:
    """A section whose function fails is omitted in this turn and requested again in the next turn; other sections are
    present.
    """
    attempts: list[int] = []

    def git() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no git here")
        return "clean"

    prompt = SystemPrompt(default=(Section("who", "You."), Section("git", git)))
    first = streamed(message(call("a", "look", where="box")))
    with Provider([first, *done()]) as provider:
        world = {"sections": prompt.function_sections}
        result_of(events_of(provider, tools=[look], system=prompt, world=world))
    assert [r["system"] for r in provider.requests] == [[block("You.")], [block("You.\n\nclean")]]


def test_a_section_without_a_function_is_an_error() -> None:
    """If the world has no function for a section, no request is sent, and the result names the section and suggests a
    fix.
    """
    prompt = SystemPrompt(default=(Section("git", lambda: "clean"),))
    with Provider([]) as provider:
        result = result_of(events_of(provider, system=prompt))
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "internal_error")
    assert "section git" in str(result.error_text)
    assert "sections=prompt.function_sections" in str(result.error_text)
    assert provider.requests == []


def test_a_static_section_is_latched() -> None:
    """If the text of a static section changes during a conversation, the change is reported but not used until
    `unlatch` is called.
    """
    conversation, held_settings = Conversation(), []
    with Provider(done(3)) as provider:
        for words in ("You sell tea.", "You sell coffee.", "You sell coffee."):
            prompt = SystemPrompt(default=(Section("who", words),))
            events = events_of(provider, conversation=conversation, system=prompt)
            held_settings.append([(e.turn, e.setting) for e in of_kind(events, SettingHeld)])
            if held_settings[-1]:
                conversation.unlatch()
    assert held_settings == [[], [(2, "section:who")], []]
    assert [r["system"][0]["text"] for r in provider.requests] == [
        "You sell tea.",
        "You sell tea.",
        "You sell coffee.",
    ]
