"""Compact the conversation of a run, with the cheapest sufficient method.

The methods are tried in this order: trim old tool results; drop the oldest groups, if only a few have
to be dropped; replace everything except the latest part by the session's memory; replace it by a
summary that the model writes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.compaction import summary
from agentobs.agent.context import reduction, token_counts
from agentobs.agent.context.context_windows import window_of
from agentobs.agent.context.message_groups import (
    Group,
    count_unanswered_blocks,
    first_call,
    without_last_blocks,
)
from agentobs.agent.context.recent_files import FILES_TOKENS_MAX, attachments, recent_files
from agentobs.agent.context.window_policy import FORCED_PERCENT, TokenCount, reached_level
from agentobs.agent.events import Compaction, Degraded, Event
from agentobs.agent.lifecycle_hooks import run_post_compact_hooks, run_pre_compact_hooks
from agentobs.agent.model import error_classes
from agentobs.agent.model.prompt import Rendered, SystemPrompt, rendered
from agentobs.agent.requests.maintenance_request import MaintenanceRequest, send_maintenance_request
from agentobs.agent.state import AgentOptions, with_context
from agentobs.agent.tools.tool import Tool
from agentobs.provider.anthropic.messages import blocks
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, child_lane

Trigger = Literal["auto", "reactive", "manual", "emergency"]

TARGET_SHARE = 0.8
"""Trimming and dropping are enough if they bring the conversation below this share of the threshold. With
a higher share, each turn could compact the conversation again and lose the provider's cache. Our
choice.
"""

REACTIVE_SHARE = 0.5
"""A prompt that the provider refused as too long must shrink below this share of its counted length. The
share is low because the count was obviously wrong. Our choice.
"""

FILES_SHARE = 0.25
"""Files that are attached again take at most this share of the removed part and of the threshold. Our choice: without
this limit, a short conversation could be as long after the compaction as it was before.
"""

HEAVY_TOKENS = 20_000
"""A prompt that has no response yet is summarized only if it is longer than this, which is the maximum length of a
summary.
"""

FAILURES_MAX = 3
"""After this many consecutive failures, a conversation is no longer compacted automatically."""


FAILED_SUMMARIES_MAX = 3
"""After this many consecutive summaries that could not be used, automatic compactions request no more summaries. Each
of these requests costs as much as the whole conversation. Our choice.
"""


@dataclass(slots=True)
class CompactionTask:
    """One compaction: its reason, its limits, its progress and its result."""

    trigger: Trigger
    tools: Sequence[Tool]
    tokens: int
    """Tokens of the conversation before the compaction."""
    threshold: int
    """Token count at which a conversation is compacted."""
    target: int
    """A method other than a summary is enough if fewer tokens than this remain."""
    instructions: str | None = None
    """Additional instructions for a summary."""
    result: Compaction | None = None
    """The completed compaction; None if it failed."""
    shortened: Group | None = None
    """The shorter conversation that was built so far; None if no method is enough."""
    error: Exception | None = None
    """The error of the LLM request for a summary; None if there was no error."""
    was_cut: bool = False
    """Whether the summary is missing because it was cut at its token limit."""
    summary: str | None = None
    """The summary that the model wrote; None if there is none."""
    summary_requests: int = 0
    """Number of LLM requests for a summary."""
    summary_failure: str | None = None
    """Why a summary was requested and could not be used, a label; None otherwise."""
    methods: list[str] = field(default_factory=list)
    """The methods that were applied, see `Compaction.methods`."""
    files: int = 0
    """Number of files that are attached again."""
    is_blocked: bool = False
    """Whether a hook has prevented the compaction."""


def window(run: Run) -> int:
    """Return the context window of the current model, in tokens."""
    options, reported = run.inputs.options, run.progress.conversation.context.reported_window
    configured = options.context.window_tokens or window_of(options.model, options.betas)
    return min(configured, reported) if reported else configured


def threshold(run: Run) -> int:
    """Return the token count at which the conversation is compacted.

    If the provider has reported a window that is not larger than the reserve, this is half of the
    window.
    """
    window_tokens = window(run)
    limit = run.inputs.options.context.threshold(window_tokens)
    return limit if limit > 0 else max(window_tokens // 2, 1)


def length(run: Run, tools: Sequence[Tool]) -> int:
    """Return the token count of the next request of a run."""
    messages, known = run.progress.state.messages, run.progress.conversation.context.counted
    # A count includes the system prompt and the tools; estimate them only if there is no count.
    is_known = token_counts.is_counted(messages, known)
    return token_counts.tokens_of(messages, known, 0 if is_known else _overhead_tokens(run, tools))


def store_token_count(run: Run, messages: Sequence[Json], usage: object) -> None:
    """Store the length of the conversation from the usage of its last message, which is a response."""
    tokens = token_counts.conversation_tokens(usage)
    if tokens is not None:
        run.progress.conversation.context.counted = TokenCount(tokens, len(messages), messages[-1])


def emit_length(run: Run, tools: Sequence[Tool], here: Place | None) -> int:
    """Emit the length of the conversation, and return it in tokens."""
    tokens = length(run, tools)
    numbers = {
        "tokens": tokens,
        "window": window(run),
        "threshold": threshold(run),
        "messages": len(run.progress.state.messages),
    }
    telemetry.event(run.inputs.world, here, "context", None, numbers)
    return tokens


def automatic_task(
    run: Run, tools: Sequence[Tool], tokens: int, level: int
) -> CompactionTask | None:
    """Return a task if the conversation must be compacted before its next request.

    Args:
        run: the run.
        tools: the tools of the turn.
        tokens: the length of the conversation.
        level: the reported share of the window, in percent.
    """
    context, limit = run.inputs.options.context, threshold(run)
    has_failed = run.progress.conversation.context.failures >= FAILURES_MAX
    if not context.is_automatic or has_failed or (tokens < limit and level < FORCED_PERCENT):
        return None
    return CompactionTask("auto", tools, tokens, limit, int(TARGET_SHARE * limit))


def emergency_task(
    run: Run, tools: Sequence[Tool], last: CompactionTask | None
) -> CompactionTask | None:
    """Return a task if the window is almost full although a compaction was tried or given up.

    There is none if a hook has prevented the compaction, or if it failed because the provider is down: the next request
    would fail for the same reason, and a later one can compact.
    """
    is_automatic, window_tokens = run.inputs.options.context.is_automatic, window(run)
    if not is_automatic or run.progress.conversation.context.level < FORCED_PERCENT:
        return None
    if last is not None and (last.is_blocked or is_temporary(last.error)):
        return None
    tokens = length(run, tools)
    if reached_level(tokens, window_tokens) < FORCED_PERCENT:
        return None
    target = FORCED_PERCENT * window_tokens // 100
    return CompactionTask("emergency", tools, tokens, threshold(run), target)


def reactive_task(run: Run, tools: Sequence[Tool], error: Exception) -> CompactionTask | None:
    """Return a task if the provider refused a prompt as too long; at most once per conversation."""
    progress = run.progress.conversation.context
    if progress.tried_reactive_compaction or not error_classes.is_too_long(error):
        return None
    tokens = length(run, tools)
    if sizes := summary.reported_sizes(error_classes.text_of(error)):
        tokens, progress.reported_window = max(tokens, sizes[0]), sizes[1]
    limit = threshold(run)
    target = int(min(TARGET_SHARE * limit, REACTIVE_SHARE * tokens))
    return CompactionTask("reactive", tools, tokens, limit, target)


async def run_compaction(
    run: Run, task: CompactionTask, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Compact the conversation of a run, for any trigger.

    Sets `task.result`, unless the compaction fails or a hook prevents it.

    Raises:
        Stopped: the run was aborted.
    """
    progress, before = run.progress.conversation.context, run.progress.state.messages
    progress.started_compactions += 1
    with telemetry.span("compaction", here, task.trigger) as inside:
        verdict, hook_events = await run_pre_compact_hooks(run, task.trigger, task.tokens, inside)
        for hook_event in hook_events:
            yield hook_event
        task.is_blocked = verdict.blocked
        if task.is_blocked:
            return
        instructions = [task.instructions, *verdict.context]
        task.instructions = "\n".join(text for text in instructions if text) or None
        async with aclosing(_shorten(run, task, inside)) as events:
            async for event in events:
                yield event
        messages = task.shortened
    if messages is None:
        async for event in _count_failure(run, task, here):
            yield event
        return
    task.result = _compaction_event(run, task, before, messages)
    unanswered_count = count_unanswered_blocks(before, run.progress.conversation.messages)
    run.progress.state = replace(run.progress.state, messages=messages)
    run.progress.conversation.messages = without_last_blocks(messages, unanswered_count)
    progress.counted = TokenCount(task.result.tokens_after, len(messages), messages[-1])
    progress.last_turn = run.progress.state.turn
    if task.trigger != "emergency":
        progress.failures = 0
    _emit_compaction(run, here, task.result)
    yield task.result
    verdict, hook_events = await run_post_compact_hooks(run, task.result, here)
    for hook_event in hook_events:
        yield hook_event
    run.progress.state = with_context(run.progress.state, verdict.context)
    if not unanswered_count:
        run.progress.conversation.messages = run.progress.state.messages


async def _count_failure(
    run: Run, task: CompactionTask, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Emit the failure of a compaction, and count the failure unless the provider is the cause."""
    progress = run.progress.conversation.context
    counts = task.trigger != "emergency" and not is_temporary(task.error)
    if counts:
        progress.failures += 1
    numbers = {"tokens": task.tokens, "threshold": task.threshold, "failures": progress.failures}
    if task.was_cut:
        numbers["cut"] = 1
    telemetry.event(run.inputs.world, here, "compaction_failed", task.trigger, numbers)
    if progress.failures == FAILURES_MAX and counts:
        telemetry.event(
            run.inputs.world, here, "degraded", "compaction", {"failures": FAILURES_MAX}
        )
        yield Degraded("compaction", "failures")


def is_temporary(error: Exception | None) -> bool:
    """Return whether an error is caused by the state of the provider, and not by the conversation."""
    if error is None:
        return False
    kind = error_classes.classify(error)
    return error_classes.REACTIONS[kind].is_retried or kind == "circuit_open"


async def _shorten(
    run: Run, task: CompactionTask, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Build the shorter conversation. Sets `task.shortened`, unless no method is enough."""
    messages = run.progress.state.messages
    if task.trigger == "emergency":
        task.shortened = _without_oldest(run, task)
        return
    if task.trigger != "manual":
        trimmed = reduction.trim(messages, run.inputs.options.context.kept_results)
        remaining = _tokens_of(run, task, trimmed)
        if remaining < task.tokens:
            task.methods.append("trim")
        if remaining < task.target:
            task.shortened = trimmed
            return
        dropped = reduction.drop(trimmed, _estimated(run, task, remaining - task.target) + 1)
        if dropped is not None and _tokens_of(run, task, dropped) < task.target:
            task.methods.append("drop")
            task.shortened = dropped
            return
        messages = trimmed
    async with aclosing(_continue_from_summary(run, task, messages, here)) as events:
        async for event in events:
            yield event
    if task.trigger == "manual" or task.error is not None:
        return
    if task.shortened is None or _tokens_of(run, task, task.shortened) >= task.threshold:
        task.shortened = _without_unseen_results(run, task, task.shortened or messages)


def _without_oldest(run: Run, task: CompactionTask) -> Group | None:
    """Return a conversation without its oldest tool results and, if necessary, without its oldest groups.

    Calls and their results stay together. Returns None if the conversation still does not fit the window.
    """
    messages = run.progress.state.messages
    excess = _estimated(run, task, task.tokens - task.target) + 1
    trimmed = reduction.trim_oldest(messages, excess)
    remaining = _tokens_of(run, task, trimmed)
    if remaining < task.tokens:
        task.methods.append("trim")
    if remaining < task.target:
        return trimmed
    dropped = reduction.drop_oldest(trimmed, _estimated(run, task, remaining - task.target) + 1)
    shortened_tokens = _tokens_of(run, task, dropped)
    if shortened_tokens < remaining:
        task.methods.append("drop")
    return dropped if shortened_tokens < min(window(run), task.tokens) else None


def _without_unseen_results(run: Run, task: CompactionTask, messages: Group) -> Group | None:
    """Return a conversation in which tool results are trimmed even if the model has not seen them yet.

    This is the last resort. The last `Context.kept_results` results are kept if possible. Returns
    None if the conversation stays too long.
    """
    limit = min(task.threshold, task.tokens)
    first_limit = task.target if task.trigger == "reactive" else limit
    kept_results = run.inputs.options.context.kept_results
    for kept, tokens_max in ((kept_results, first_limit), (0, limit)):
        trimmed = reduction.trim(messages, kept, spares_new=False)
        if _tokens_of(run, task, trimmed) < tokens_max:
            if task.methods[-1:] != ["trim"]:
                task.methods.append("trim")
            return trimmed
    return None


async def _continue_from_summary(
    run: Run, task: CompactionTask, messages: Group, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Build a conversation that continues from the memory or from a summary.

    Sets `task.shortened`, unless there is neither a memory nor a summary that is short enough. After several automatic
    compactions whose summaries could not be used, no summary is requested.
    """
    size = min(token_counts.estimate(messages), _estimated(run, task, task.threshold))
    removed, kept = summary.split(messages, int(summary.KEPT_SHARE * size))
    has_response = any(message.get("role") == "assistant" for message in removed)
    if not has_response and not _is_heavy(removed):
        return
    files = _file_blocks(run, task, kept)
    number = run.progress.conversation.context.started_compactions
    question = {"trigger": task.trigger}
    key = f"{run.progress.state.turn}:{number}"
    memory = await telemetry.ask(run.inputs.world, here, "memory", key, question)
    if isinstance(memory, str) and memory.strip():
        shortened = summary.continued_from(memory.strip(), files, kept)
        if _is_enough(run, task, shortened):
            task.methods.append("memory")
            task.files = len(files)
            task.shortened = shortened
            return
    progress = run.progress.conversation.context
    if task.trigger == "auto" and progress.failed_summaries >= FAILED_SUMMARIES_MAX:
        return
    async with aclosing(_request_summary(run, task, removed, number, here)) as events:
        async for event in events:
            yield event
    if task.summary is not None:
        shortened = summary.continued_from(task.summary, files, kept)
        if _tokens_of(run, task, shortened) < task.tokens:
            task.methods.append("summary")
            task.files = len(files)
            task.shortened = shortened
            progress.failed_summaries = 0
        else:
            task.summary_failure = "not_shorter"
    for degraded in _count_failed_summary(run, task, here):
        yield degraded


def _count_failed_summary(run: Run, task: CompactionTask, here: Place | None) -> Iterator[Degraded]:
    """Emit that a summary could not be used, and count it if the compaction is automatic."""
    if task.summary_failure is None:
        return
    progress = run.progress.conversation.context
    if task.trigger == "auto":
        progress.failed_summaries += 1
    numbers = {
        "requests": task.summary_requests,
        "failures": progress.failed_summaries,
        "tokens": task.tokens,
    }
    telemetry.event(run.inputs.world, here, "summary_failed", task.summary_failure, numbers)
    if task.trigger == "auto" and progress.failed_summaries == FAILED_SUMMARIES_MAX:
        failures = {"failures": FAILED_SUMMARIES_MAX}
        telemetry.event(run.inputs.world, here, "degraded", "summary", failures)
        yield Degraded("summary", "failures")


async def _request_summary(
    run: Run, task: CompactionTask, messages: Group, number: int, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Request a summary of some messages. Sets `task.summary`, or `task.summary_failure` if there is no summary.

    If the request is too long, it is repeated without the oldest messages. If the summary is cut, a
    shorter summary is requested once.
    """
    lane = child_lane(here.lane if here else "main", f"compaction:{number}")
    source: QuerySource = "summary" if task.trigger == "manual" else "compaction"
    options, context = _options_with_known_prompt(run), run.inputs.options.context
    drops, instructions = 0, task.instructions
    for count in range(summary.DROPS_MAX + 2):
        arguments = summary.summary_request(
            messages,
            run.progress.state,
            options,
            task.tools,
            run.inputs.output_declaration,
            instructions,
        )
        point = f"{run.progress.state.turn}:compaction:{number}.{count}"
        request = MaintenanceRequest(arguments, source, lane, point)
        task.summary_requests += 1
        try:
            async with aclosing(send_maintenance_request(run, request, here)) as events:
                async for event in events:
                    yield event
        except error_classes.PROVIDER_ERRORS as error:
            if not error_classes.is_too_long(error):
                task.error = error
                return
            sizes = summary.reported_sizes(error_classes.text_of(error))
        else:
            response = request.response
            if response is None or response.get("stop_reason") == "refusal":
                task.summary_failure = "no_response" if response is None else "refusal"
                return
            if response.get("stop_reason") == "max_tokens" and task.was_cut:
                task.summary_failure = "cut"
                return
            if response.get("stop_reason") == "max_tokens":
                task.was_cut = True
                words = max(context.summary_tokens // 2, 1)
                shorter_prompt = summary.SHORTER_SUMMARY_PROMPT.format(words=words)
                instructions = "\n\n".join(filter(None, (task.instructions, shorter_prompt)))
                continue
            if not error_classes.is_too_long(response):
                task.was_cut = False
                task.summary = text_of(response.get("content")).strip() or None
                task.summary_failure = None if task.summary is not None else "no_text"
                return
            sizes = None
        excess = sizes[0] - sizes[1] + context.summary_tokens if sizes else None
        fewer = summary.with_fewer_groups(messages, excess)
        drops += 1
        if fewer is None or drops > summary.DROPS_MAX:
            task.summary_failure = "too_long"
            return
        messages = fewer


def _options_with_known_prompt(run: Run) -> AgentOptions:
    """Return the options, with a `SystemPrompt` rendered without the sections that have not been written yet."""
    prompt = run.inputs.options.system
    if not isinstance(prompt, SystemPrompt):
        return run.inputs.options
    return replace(run.inputs.options, system=rendered(prompt, run.progress.conversation.sections))


def _file_blocks(run: Run, task: CompactionTask, kept: Sequence[Json]) -> list[Json]:
    """Return the blocks that attach recent files again. The texts come from the conversation before it was trimmed."""
    before = run.progress.state.messages
    removed = before[: len(before) - len(kept)]
    files = recent_files(removed, kept, task.tools)
    removed_tokens = token_counts.estimate(removed)
    tokens = FILES_SHARE * min(removed_tokens, _estimated(run, task, task.threshold))
    return attachments(files, min(FILES_TOKENS_MAX, int(tokens)))


def _is_heavy(messages: Sequence[Json]) -> bool:
    """Return whether a prompt without a response is long enough for a summary."""
    return token_counts.estimate(messages) > HEAVY_TOKENS


def _is_enough(run: Run, task: CompactionTask, messages: Sequence[Json]) -> bool:
    return _tokens_of(run, task, messages) < (
        task.tokens if task.trigger == "manual" else min(task.target, task.tokens)
    )


def _tokens_of(run: Run, task: CompactionTask, messages: Sequence[Json]) -> int:
    """Return the token count of the conversation if it is reduced to these messages."""
    overhead = _overhead_tokens(run, task.tools)
    before = overhead + token_counts.estimate(run.progress.state.messages)
    now = overhead + token_counts.estimate(messages)
    return token_counts.tokens_after(task.tokens, before, now)


def _estimated(run: Run, task: CompactionTask, tokens: int) -> int:
    """Convert a token count of the provider to the scale of our estimates."""
    before = _overhead_tokens(run, task.tools) + token_counts.estimate(run.progress.state.messages)
    return round(tokens * before / max(task.tokens, 1))


def _overhead_tokens(run: Run, tools: Sequence[Tool]) -> int:
    """Return the approximate tokens of a request outside its messages."""
    system = _options_with_known_prompt(run).system
    output_declaration = run.inputs.output_declaration
    declarations = [tool.declaration for tool in tools]
    if output_declaration is not None:
        declarations.append(output_declaration)
    return token_counts.overhead(
        system.blocks if isinstance(system, Rendered) else system, declarations
    )


def _compaction_event(run: Run, task: CompactionTask, before: Group, messages: Group) -> Compaction:
    last = run.progress.conversation.context.last_turn
    return Compaction(
        turn=run.progress.state.turn,
        trigger=task.trigger,
        methods=tuple(task.methods),
        tokens_before=task.tokens,
        tokens_after=_tokens_of(run, task, messages),
        threshold=task.threshold,
        messages_before=len(before),
        messages_after=len(messages),
        kept_from=_kept_from(before, messages),
        turns_since_last=None if last is None else run.progress.state.turn - last,
        files=task.files,
    )


def _kept_from(before: Group, messages: Group) -> str | None:
    """Return where the unchanged part starts, see `Compaction.kept_from`.

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
    """Return whether a message ends with all blocks of another message."""
    content, suffix = blocks(message), blocks(part)
    has_same_role = message.get("role") == part.get("role")
    return bool(suffix) and has_same_role and content[-len(suffix) :] == suffix


def _emit_compaction(run: Run, here: Place | None, compaction: Compaction) -> None:
    numbers: dict[str, float] = {
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
        "threshold": compaction.threshold,
        "messages_before": compaction.messages_before,
        "messages_after": compaction.messages_after,
        "files": compaction.files,
        **dict.fromkeys(compaction.methods, 1),
    }
    if compaction.turns_since_last is not None:
        numbers["turns_since_last"] = compaction.turns_since_last
    telemetry.event(run.inputs.world, here, "compaction", compaction.trigger, numbers)
    if compaction.kept_from is not None:
        telemetry.event(run.inputs.world, here, "compaction_kept", compaction.kept_from, {})
