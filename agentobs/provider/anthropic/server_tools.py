"""Tools that the provider runs: their calls and results in a response, and names that a request declares.

The blocks of a tool that a later version of the API adds are read as well, because only the ends of their types count.
Source: anthropic 2.12, `types/beta/beta_content_block.py` and the types that it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentobs.provider.anthropic.messages import is_provider_call, is_provider_result
from agentobs.provider.anthropic.terms import TOOLSETS
from agentobs.provider.dialect import ProviderCall, ProviderResult, json_bytes


def provider_calls(
    blocks: Sequence[Mapping[str, Any]], inputs: Mapping[int, Sequence[str]], starts: Sequence[int]
) -> list[ProviderCall]:
    """Return the calls of tools that the provider runs.

    Args:
        blocks: the content blocks of a response.
        inputs: the deltas of inputs in a stream, by the index of their block.
        starts: when each block started, in nanoseconds after the request; empty if that is unknown.
    """
    return [
        ProviderCall(
            id=_text(block.get("id")) or "",
            name=_text(block.get("name")) or "",
            server=_text(block.get("server_name")),
            input_bytes=json_bytes("".join(inputs.get(at, ()))) or json_bytes(block.get("input")),
            caller_id=_caller(block.get("caller")),
            after_ns=starts[at] if starts else None,
        )
        for at, block in enumerate(blocks)
        if is_provider_call(block)
    ]


def provider_results(
    blocks: Sequence[Mapping[str, Any]], usage: object, starts: Sequence[int]
) -> list[ProviderResult]:
    """Return the results of tools that the provider runs, including results for calls of earlier responses.

    Args:
        blocks: the content blocks of a response.
        usage: the provider's usage object.
        starts: when each block started, in nanoseconds after the request; empty if that is unknown.
    """
    found = [(at, block) for at, block in enumerate(blocks) if is_provider_result(block)]
    advised = [at for at, block in found if _is_advice(block)]
    iterations = _advisor_iterations(usage)
    # The provider lists the iterations in the order of the consultations.
    iteration_of = dict(zip(advised, iterations, strict=True)) if _same(advised, iterations) else {}
    return [
        _result(block, starts[at] if starts else None, iteration_of.get(at)) for at, block in found
    ]


def _same(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other)


def _result(
    block: Mapping[str, Any], after_ns: int | None, iteration: int | None
) -> ProviderResult:
    content = block.get("content")
    inner = content if isinstance(content, Mapping) else {}
    code, return_code = _text(inner.get("error_code")), inner.get("return_code")
    is_error = block.get("is_error") is True or code is not None
    return ProviderResult(
        id=_text(block.get("tool_use_id")) or "",
        type=str(block.get("type")),
        is_error=is_error or str(inner.get("type")).endswith("_error"),
        error_code=code,
        result_bytes=json_bytes(content),
        items=_items(content),
        return_code=return_code if type(return_code) is int else None,
        stop_reason=_text(inner.get("stop_reason")),
        iteration=iteration,
        after_ns=after_ns,
    )


def _items(content: object) -> int | None:
    """Return how many parts a result has: search results, files, found tools or texts."""
    if isinstance(content, Mapping):
        lists = (content.get("tool_references"), content.get("content"))
        content = next((each for each in lists if isinstance(each, list)), None)
    return len(content) if isinstance(content, list) else None


def _is_advice(block: Mapping[str, Any]) -> bool:
    content = block.get("content")
    return (
        block.get("type") == "advisor_tool_result"
        and isinstance(content, Mapping)
        and content.get("error_code") is None
    )


def _advisor_iterations(usage: object) -> list[int]:
    """Return the numbers of the iterations in which the advisor ran, as in `usage_rows`."""
    listed = usage.get("iterations") if isinstance(usage, Mapping) else None
    entries = (
        [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    return [at for at, each in enumerate(entries, 1) if each.get("type") == "advisor_message"]


def other_names(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that a request declares in addition to its tools: of MCP servers, and of tools in toolsets."""
    for server in _objects(body.get("mcp_servers")):
        yield from _texts([server.get("name")])
        configuration = server.get("tool_configuration")
        if isinstance(configuration, Mapping) and isinstance(
            configuration.get("allowed_tools"), list
        ):
            yield from _texts(configuration["allowed_tools"])
    for toolset in _objects(body.get("tools")):
        for start, members in TOOLSETS.items():
            if str(toolset.get("type")).startswith(start):
                yield from members
        yield from _texts([toolset.get("mcp_server_name")])
        configs, pinned = toolset.get("configs"), toolset.get("tools")
        if isinstance(configs, Mapping):
            yield from _texts(configs)
        elif isinstance(configs, list):
            yield from _texts(each.get("name") for each in _objects(configs))
        yield from _texts(each.get("name") for each in _objects(pinned))


def _texts(values: Any) -> Iterator[str]:
    return (each for each in values if isinstance(each, str))


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _caller(caller: object) -> str | None:
    """Return the ID of the call, such as a code execution, that made a call; None if the model made it."""
    return _text(caller.get("tool_id")) if isinstance(caller, Mapping) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
