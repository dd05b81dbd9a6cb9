"""The system prompt: levels, static and volatile sections, and the source of their texts."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent import Conversation, Section, SettingHeld, SystemPrompt, tool
from agentobs.agent.model.prompt import rendered
from agentobs.errors import UsageError
from agentobs.records.exchanges import WorldExchange

from .provider import Provider, call, message, streamed, text
from .scene import events_of, of_kind, recorded, result_of

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
def test_the_highest_level_speaks(highest: int) -> None:
    """All lower levels are ignored; the tail is last, except with an override."""
    said = {name: f"I am the {name}." for name in LEVELS[: highest + 1]}
    told = rendered(SystemPrompt(**said, append="And be brief."), {})
    tail = "" if LEVELS[highest] == "override" else "\n\nAnd be brief."
    assert told.blocks == [block(f"I am the {LEVELS[highest]}.{tail}")]


def test_what_changes_comes_after_what_stays() -> None:
    """Static sections form one block, in order; volatile ones form the next, and the tail ends it."""
    prompt = SystemPrompt(
        default=(
            Section("who", "You sell tea."),
            Section("stock", "12 bags.", volatile=True, reason="it is sold while we talk"),
            Section("how", "Be kind."),
            Section("nothing", "  "),
        ),
        append="Never lie.",
    )
    told = rendered(prompt, {})
    assert told.static == (block("You sell tea.\n\nBe kind."),)
    assert told.dynamic == (block("12 bags.\n\nNever lie."),)


def test_a_volatile_section_gives_its_reason() -> None:
    """Without a reason it is refused, and so are two sections with one name."""
    for reason in (None, " "):
        with pytest.raises(UsageError, match="volatile but gives no reason"):
            Section("clock", "noon", volatile=True, reason=reason)
    with pytest.raises(UsageError, match="not volatile"):
        Section("clock", "noon", reason="time passes")
    with pytest.raises(UsageError, match="the same name: who"):
        SystemPrompt(custom=(Section("who", "me"), Section("who", "you")))


def test_sections_are_asked_of_the_world() -> None:
    """A static section is requested once per conversation, a volatile one each turn; the request has the texts."""
    asked: list[str] = []

    def tree() -> str:
        asked.append("tree")
        return "main.py"

    async def clock() -> str:
        asked.append("clock")
        return f"It is {len(asked)} o'clock."

    prompt = SystemPrompt(
        default=(
            Section("tree", tree),
            Section("clock", clock, volatile=True, reason="time passes"),
        )
    )
    talk = Conversation()
    first = streamed(message(call("a", "look", where="box")))
    with Provider([first, *done(2)]) as provider, recorded() as records:
        for words in ("Hello", "Again"):
            result_of(
                events_of(
                    provider,
                    words,
                    tools=[look],
                    conversation=talk,
                    system=prompt,
                    world={"sections": prompt.asked},
                )
            )
    assert asked == ["tree", "clock", "clock", "clock"]
    assert [r["system"] for r in provider.requests] == [
        [block("main.py"), block(f"It is {hour} o'clock.")] for hour in (2, 3, 4)
    ]
    told = [r for r in records if isinstance(r, WorldExchange)]
    assert [(r.question.kind, r.question.key, r.answer) for r in told] == [
        ("section", "tree", "main.py"),
        ("section", "1:clock", "It is 2 o'clock."),
        ("section", "2:clock", "It is 3 o'clock."),
        ("section", "3:clock", "It is 4 o'clock."),
    ]


@pytest.mark.filterwarnings("ignore:agentobs. the section git")
def test_a_section_that_cannot_be_written_is_left_out() -> None:
    """It fails for this turn, and is requested again in the next; the others are present."""
    tries: list[int] = []

    def git() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no git here")
        return "clean"

    prompt = SystemPrompt(default=(Section("who", "You."), Section("git", git)))
    first = streamed(message(call("a", "look", where="box")))
    with Provider([first, *done()]) as provider:
        world = {"sections": prompt.asked}
        result_of(events_of(provider, tools=[look], system=prompt, world=world))
    assert [r["system"] for r in provider.requests] == [[block("You.")], [block("You.\n\nclean")]]


def test_a_section_that_nobody_writes_is_an_error() -> None:
    """The result names it and says what to do; no request is sent."""
    prompt = SystemPrompt(default=(Section("git", lambda: "clean"),))
    with Provider([]) as provider:
        result = result_of(events_of(provider, system=prompt))
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "internal_error")
    assert "section git" in str(result.error_text)
    assert "sections=prompt.asked" in str(result.error_text)
    assert provider.requests == []


def test_a_section_that_stays_does_not_change() -> None:
    """Another text for it in the same conversation is reported and not applied; `unlatch` applies it."""
    talk, told = Conversation(), []
    with Provider(done(3)) as provider:
        for words in ("You sell tea.", "You sell coffee.", "You sell coffee."):
            prompt = SystemPrompt(default=(Section("who", words),))
            events = events_of(provider, conversation=talk, system=prompt)
            told.append([(e.turn, e.setting) for e in of_kind(events, SettingHeld)])
            if told[-1]:
                talk.unlatch()
    assert told == [[], [(2, "section:who")], []]
    assert [r["system"][0]["text"] for r in provider.requests] == [
        "You sell tea.",
        "You sell tea.",
        "You sell coffee.",
    ]
