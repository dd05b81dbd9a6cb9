"""Compact the conversation of a run, cheapest method first.

Old tool results are trimmed. Then the oldest groups are dropped, if a few of them are enough. Then
the session's memory replaces everything except the latest part. Finally the model is asked for a
summary. The first method that is enough ends the compaction.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.compaction import summary as summarizing
from agentobs.agent.context import reduction, token_counts
from agentobs.agent.context.context_windows import window_of
from agentobs.agent.context.message_groups import Group, first_call, unanswered, without_last
from agentobs.agent.context.recent_files import FILES_TOKENS_MAX, attached, recent_files
from agentobs.agent.context.window_policy import Counted
from agentobs.agent.events import Compaction, Degraded, Event
from agentobs.agent.lifecycle_hooks import after_compaction, before_compaction
from agentobs.agent.model import error_classes
from agentobs.agent.model.prompt import Rendered, SystemPrompt, rendered
from agentobs.agent.requests.maintenance_request import MaintenanceRequest, upkeep
from agentobs.agent.state import Options, with_context
from agentobs.agent.tools.tool import Tool
from agentobs.provider.anthropic.messages import blocks
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, lane_under

Trigger = Literal["auto", "reactive", "manual"]

TARGET_SHARE = 0.8
"""Trimming and dropping are enough if they bring a conversation below this share of the threshold.
Otherwise each turn would compact it again and lose the provider's cache. Our choice.
"""

REACTIVE_SHARE = 0.5
"""A refused prompt must shrink below this share of its length, because its count was wrong. Our
choice.
"""

FILES_SHARE = 0.25
"""Files that are attached again take at most this share of the removed part and of the threshold. Our choice: otherwise
a small conversation would be as long as before.
"""

HEAVY_TOKENS = 20_000
"""A prompt without any response is summarized only if it is longer than this, the length of a
summary.
"""

FAILURES_MAX = 3
"""After this many consecutive failures, a conversation is no longer compacted automatically."""


@dataclass(slots=True)
class Need:
    """A compaction that is needed: its reason and its result."""

    trigger: Trigger
    tools: Sequence[Tool]
    tokens: int
    """Tokens of the conversation before."""
    threshold: int
    target: int
    """Tokens that may remain without a summary."""
    instructions: str | None = None
    """Additional instructions for a summary."""
    done: Compaction | None = None
    """The completed compaction; None if it failed."""
    made: Group | None = None
    """The shorter conversation built so far; None if no method is enough."""
    error: Exception | None = None
    """Why there is no summary: the error of its LLM request."""
    was_cut: bool = False
    """Whether the summary is missing because it was cut at its token limit."""
    summary: str | None = None
    """The model's summary; None if there is none."""
    methods: list[str] = field(default_factory=list)
    files: int = 0


def window(this: Run) -> int:
    """Return the context window of the current model, in tokens."""
    options, reported = this.options, this.talk.context.window_told
    own = options.context.window_tokens or window_of(options.model, options.betas)
    return min(own, reported) if reported else own


def threshold(this: Run) -> int:
    """Return the token count at which the conversation is compacted.

    If the provider reports a window no larger than the reserve, this is half the window.
    """
    room = window(this)
    limit = this.options.context.threshold(room)
    return limit if limit > 0 else max(room // 2, 1)


def length(this: Run, tools: Sequence[Tool]) -> int:
    """Return the token count of a run's next request."""
    messages, known = this.state.messages, this.talk.context.counted
    # A count includes the system prompt and the tools; estimate them only if there is no count.
    is_known = token_counts.is_counted(messages, known)
    return token_counts.tokens_of(messages, known, 0 if is_known else _around(this, tools))


def counted(this: Run, messages: Sequence[Json], usage: object) -> None:
    """Store the length of a conversation from the usage of its last response."""
    tokens = token_counts.held(usage)
    if tokens is not None:
        this.talk.context.counted = Counted(tokens, len(messages), messages[-1])


def automatic(this: Run, tools: Sequence[Tool], here: Place | None) -> Need | None:
    """Emit the length of the conversation; return the need for compaction if the threshold is
    reached.
    """
    progress, context = this.talk.context, this.options.context
    tokens, limit = length(this, tools), threshold(this)
    numbers = {
        "tokens": tokens,
        "window": window(this),
        "threshold": limit,
        "messages": len(this.state.messages),
    }
    telemetry.event(this.world, here, "context", None, numbers)
    if tokens < limit or not context.is_automatic or progress.failures >= FAILURES_MAX:
        return None
    return Need("auto", tools, tokens, limit, int(TARGET_SHARE * limit))


def reactive(this: Run, tools: Sequence[Tool], error: Exception) -> Need | None:
    """Return the need for compaction after the provider refused a prompt as too long; once per
    conversation.
    """
    progress = this.talk.context
    if progress.has_reacted or not error_classes.is_too_long(error):
        return None
    tokens = length(this, tools)
    if sizes := summarizing.reported_sizes(error_classes.text_of(error)):
        tokens, progress.window_told = max(tokens, sizes[0]), sizes[1]
    limit = threshold(this)
    target = int(min(TARGET_SHARE * limit, REACTIVE_SHARE * tokens))
    return Need("reactive", tools, tokens, limit, target)


async def compaction(this: Run, need: Need, here: Place | None) -> AsyncGenerator[Event, None]:
    """Compact the conversation of a run. `need.done` is the result, or None if it failed or a hook
    prevented it.

    Every compaction passes through here, whatever its trigger.

    Raises:
        Stopped: the run was aborted.
    """
    progress, before = this.talk.context, this.state.messages
    progress.begun += 1
    with telemetry.span("compaction", here, need.trigger) as inside:
        verdict, hook_events = await before_compaction(this, need.trigger, need.tokens, inside)
        for ran in hook_events:
            yield ran
        if verdict.blocked:
            return
        wanted = [need.instructions, *verdict.context]
        need.instructions = "\n".join(text for text in wanted if text) or None
        async with aclosing(_shortened(this, need, inside)) as events:
            async for event in events:
                yield event
        messages = need.made
    if messages is None:
        async for event in _failed(this, need, here):
            yield event
        return
    need.done = _boundary(this, need, before, messages)
    unanswered_count = unanswered(before, this.talk.messages)
    this.state = replace(this.state, messages=messages)
    this.talk.messages = without_last(messages, unanswered_count)
    progress.counted = Counted(need.done.tokens_after, len(messages), messages[-1])
    progress.failures, progress.last_turn = 0, this.state.turn
    _emit_boundary(this, here, need.done)
    yield need.done
    verdict, hook_events = await after_compaction(this, need.done, here)
    for ran in hook_events:
        yield ran
    this.state = with_context(this.state, verdict.context)
    if not unanswered_count:
        this.talk.messages = this.state.messages


async def _failed(this: Run, need: Need, here: Place | None) -> AsyncGenerator[Event, None]:
    progress, passes = this.talk.context, may_pass(need.error)
    if not passes:
        progress.failures += 1
    numbers = {"tokens": need.tokens, "threshold": need.threshold, "failures": progress.failures}
    if need.was_cut:
        numbers["cut"] = 1
    telemetry.event(this.world, here, "compaction_failed", need.trigger, numbers)
    if progress.failures == FAILURES_MAX and not passes:
        telemetry.event(this.world, here, "degraded", "compaction", {"failures": FAILURES_MAX})
        yield Degraded("compaction", "failures")


def may_pass(error: Exception | None) -> bool:
    """Return whether an error is a state of the provider, unrelated to the conversation."""
    if error is None:
        return False
    kind = error_classes.classify(error)
    return error_classes.FOLLOWS[kind].is_retried or kind == "circuit_open"


async def _shortened(this: Run, need: Need, here: Place | None) -> AsyncGenerator[Event, None]:
    """Build the shorter conversation in `need.made`; None if no method is enough."""
    messages = this.state.messages
    if need.trigger != "manual":
        trimmed = reduction.trim(messages, this.options.context.kept_results)
        left = _left(this, need, trimmed)
        if left < need.tokens:
            need.methods.append("trim")
        if left < need.target:
            need.made = trimmed
            return
        dropped = reduction.drop(trimmed, _estimated(this, need, left - need.target) + 1)
        if dropped is not None and _left(this, need, dropped) < need.target:
            need.methods.append("drop")
            need.made = dropped
            return
        messages = trimmed
    async with aclosing(_summarized(this, need, messages, here)) as events:
        async for event in events:
            yield event
    if need.trigger == "manual" or need.error is not None:
        return
    if need.made is None or _left(this, need, need.made) >= need.threshold:
        need.made = _without_new(this, need, need.made or messages)


def _without_new(this: Run, need: Need, messages: Group) -> Group | None:
    """Return a conversation without results that the model has not seen yet, except the last ones if possible.

    This is the last resort. None if the conversation stays too long.
    """
    most = min(need.threshold, need.tokens)
    few = need.target if need.trigger == "reactive" else most
    for kept_results, enough in ((this.options.context.kept_results, few), (0, most)):
        made = reduction.trim(messages, kept_results, spares_new=False)
        if _left(this, need, made) < enough:
            if need.methods[-1:] != ["trim"]:
                need.methods.append("trim")
            return made
    return None


async def _summarized(
    this: Run, need: Need, messages: Group, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Build a conversation that continues from the memory or from a summary; none if neither exists."""
    size = min(token_counts.estimate(messages), _estimated(this, need, need.threshold))
    gone, rest = summarizing.split(messages, int(summarizing.KEPT_SHARE * size))
    if not any(message.get("role") == "assistant" for message in gone) and not _is_heavy(gone):
        return
    files = _files(this, need, rest)
    number = this.talk.context.begun
    question = {"trigger": need.trigger}
    key = f"{this.state.turn}:{number}"
    memory = await telemetry.ask(this.world, here, "memory", key, question)
    if isinstance(memory, str) and memory.strip():
        made = summarizing.continued_from(memory.strip(), files, rest)
        if _is_enough(this, need, made):
            need.methods.append("memory")
            need.files = len(files)
            need.made = made
            return
    async with aclosing(_summary(this, need, gone, number, here)) as events:
        async for event in events:
            yield event
    if need.summary is None:
        return
    made = summarizing.continued_from(need.summary, files, rest)
    if _left(this, need, made) < need.tokens:
        need.methods.append("summary")
        need.files = len(files)
        need.made = made


async def _summary(
    this: Run, need: Need, gone: Group, number: int, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Request a summary, of fewer messages if the request is too long. Sets `need.summary`; None if
    there is none.

    A summary that was cut is requested once more with a shorter length.
    """
    lane = lane_under(here.lane if here else "main", f"compaction:{number}")
    source: QuerySource = "summary" if need.trigger == "manual" else "compaction"
    options, context = _known(this), this.options.context
    drops, wanted = 0, need.instructions
    for count in range(summarizing.DROPS_MAX + 2):
        arguments = summarizing.request(gone, this.state, options, need.tools, this.owed, wanted)
        point = f"{this.state.turn}:compaction:{number}.{count}"
        upkeep_request = MaintenanceRequest(arguments, source, lane, point)
        try:
            async with aclosing(upkeep(this, upkeep_request, here)) as events:
                async for event in events:
                    yield event
        except error_classes.PROVIDER_ERRORS as error:
            if not error_classes.is_too_long(error):
                need.error = error
                return
            sizes = summarizing.reported_sizes(error_classes.text_of(error))
        else:
            answer = upkeep_request.answer
            if answer is None or answer.get("stop_reason") == "refusal":
                return
            if answer.get("stop_reason") == "max_tokens" and need.was_cut:
                return
            if answer.get("stop_reason") == "max_tokens":
                need.was_cut = True
                again = summarizing.SHORTER.format(words=max(context.summary_tokens // 2, 1))
                wanted = "\n\n".join(filter(None, (need.instructions, again)))
                continue
            if not error_classes.is_too_long(answer):
                need.was_cut = False
                need.summary = text_of(answer.get("content")).strip() or None
                return
            sizes = None
        excess = sizes[0] - sizes[1] + context.summary_tokens if sizes else None
        fewer = summarizing.shorter(gone, excess)
        drops += 1
        if fewer is None or drops > summarizing.DROPS_MAX:
            return
        gone = fewer


def _known(this: Run) -> Options:
    """Return the options with the system prompt as far as it is known without a question to the
    world.
    """
    prompt = this.options.system
    if not isinstance(prompt, SystemPrompt):
        return this.options
    return replace(this.options, system=rendered(prompt, this.talk.sections))


def _files(this: Run, need: Need, rest: Sequence[Json]) -> list[Json]:
    """Return the blocks of files to attach again, taken from the conversation before it was trimmed."""
    before = this.state.messages
    gone = before[: len(before) - len(rest)]
    files = recent_files(gone, rest, need.tools)
    room = FILES_SHARE * min(token_counts.estimate(gone), _estimated(this, need, need.threshold))
    return attached(files, min(FILES_TOKENS_MAX, int(room)))


def _is_heavy(gone: Sequence[Json]) -> bool:
    """Return whether a prompt alone is worth a summary."""
    return token_counts.estimate(gone) > HEAVY_TOKENS


def _is_enough(this: Run, need: Need, messages: Sequence[Json]) -> bool:
    return _left(this, need, messages) < (
        need.tokens if need.trigger == "manual" else min(need.target, need.tokens)
    )


def _left(this: Run, need: Need, messages: Sequence[Json]) -> int:
    """Return the token count of the conversation with these messages."""
    around = _around(this, need.tools)
    before = around + token_counts.estimate(this.state.messages)
    return token_counts.after(need.tokens, before, around + token_counts.estimate(messages))


def _estimated(this: Run, need: Need, tokens: int) -> int:
    """Return our estimate that corresponds to a counted number of tokens."""
    before = _around(this, need.tools) + token_counts.estimate(this.state.messages)
    return round(tokens * before / max(need.tokens, 1))


def _around(this: Run, tools: Sequence[Tool]) -> int:
    """Return the approximate tokens of a request outside its messages."""
    system = _known(this).system
    owed = [] if this.owed is None else [this.owed]
    return token_counts.declared(
        system.blocks if isinstance(system, Rendered) else system,
        [*(tool.declaration for tool in tools), *owed],
    )


def _boundary(this: Run, need: Need, before: Group, messages: Group) -> Compaction:
    last = this.talk.context.last_turn
    return Compaction(
        turn=this.state.turn,
        trigger=need.trigger,
        methods=tuple(need.methods),
        tokens_before=need.tokens,
        tokens_after=_left(this, need, messages),
        threshold=need.threshold,
        messages_before=len(before),
        messages_after=len(messages),
        kept_from=_kept_from(before, messages),
        turns_since_last=None if last is None else this.state.turn - last,
        files=need.files,
    )


def _kept_from(before: Group, messages: Group) -> str | None:
    """Return the ID of the first call in the unchanged part, or else the number of unchanged
    messages.

    A message that was merged with the summary also counts as unchanged.
    """
    same = 0
    while same < min(len(before), len(messages)) and before[-1 - same] is messages[-1 - same]:
        same += 1
    if same < min(len(before), len(messages)) and _ends_with(
        messages[-1 - same], before[-1 - same]
    ):
        same += 1
    if not same:
        return None
    return first_call(messages[len(messages) - same :]) or f"message:{same}"


def _ends_with(message: Json, part: Json) -> bool:
    own, suffix = blocks(message), blocks(part)
    return (
        bool(suffix) and message.get("role") == part.get("role") and own[-len(suffix) :] == suffix
    )


def _emit_boundary(this: Run, here: Place | None, done: Compaction) -> None:
    numbers: dict[str, float] = {
        "tokens_before": done.tokens_before,
        "tokens_after": done.tokens_after,
        "threshold": done.threshold,
        "messages_before": done.messages_before,
        "messages_after": done.messages_after,
        "files": done.files,
        **dict.fromkeys(done.methods, 1),
    }
    if done.turns_since_last is not None:
        numbers["turns_since_last"] = done.turns_since_last
    telemetry.event(this.world, here, "compaction", done.trigger, numbers)
    if done.kept_from is not None:
        telemetry.event(this.world, here, "compaction_kept", done.kept_from, {})
