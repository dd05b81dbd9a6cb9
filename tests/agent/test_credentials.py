"""Credentials that the provider or a gateway refuses with a 403 are renewed once, as after a 401."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AccessToken, AsyncAnthropic

from agentobs.agent import ProviderError, Result, Retry

from .agent_objects import agent, asking, play, recorded_and_replayed
from .agent_runs import of_kind, result_of
from .provider import Provider, error, message, streamed, text

DONE = streamed(message(text("Done.")))
FORBIDDEN = error(403, "permission_error", retry="false", text="the token has expired")
UNAUTHORIZED = error(401, "authentication_error", retry="false")


class Renewing:
    """Runs an agent whose key is replaced by a refresh."""

    def __init__(self, *, succeeds: bool = True) -> None:
        self.count, self._succeeds = 0, succeeds

    async def __call__(self, client: AsyncAnthropic) -> list[Any]:
        client.api_key = "first!"

        def refresh() -> bool:
            self.count += 1
            client.api_key = "second"
            return self._succeeds

        asked = agent(client, parts={"refresh": refresh})
        return [event async for event in asked.stream("Go")]


def keys(provider: Provider) -> list[str]:
    return [headers["authorization"][-6:] for headers in provider.headers]


def test_new_credentials_after_a_403(tmp_path: Path) -> None:
    """After a 403, the credentials are renewed and the request is sent again; a replay renews nothing."""
    renewing, provider = Renewing(), Provider([FORBIDDEN, DONE])
    events = recorded_and_replayed(tmp_path, provider, renewing)
    assert of_kind(events, Retry) == [Retry(1, 1, 0.0, "permission_error", 403)]
    assert result_of(events).text == "Done."
    assert (keys(provider), renewing.count) == (["first!", "second"], 1)


@pytest.mark.parametrize("replies", [[FORBIDDEN] * 2, [UNAUTHORIZED, FORBIDDEN]])
def test_a_second_refusal_is_final(replies: list[Any], tmp_path: Path) -> None:
    """A 403 after new credentials ends the run, whether the first refusal was a 401 or a 403."""
    renewing, provider = Renewing(), Provider([*replies, DONE])
    events = recorded_and_replayed(tmp_path, provider, renewing)
    assert (len(provider.requests), renewing.count) == (2, 1)
    with pytest.raises(ProviderError, match="permission_error: the token has expired") as raised:
        result_of(events).raise_for_error()
    assert isinstance(raised.value.__cause__, anthropic.PermissionDeniedError)


@pytest.mark.slow
@pytest.mark.parametrize("has_refresh", [False, True])
def test_a_403_without_new_credentials_is_final(has_refresh: bool, tmp_path: Path) -> None:
    """If there is no refresh function, or it has no new credentials, the first 403 ends the run.

    Nothing is recorded about it, so a recording without the question also replays.
    """
    ask = Renewing(succeeds=False) if has_refresh else asking()

    async def twice(client: AsyncAnthropic) -> list[Any]:
        return [*(await ask(client)), *(await asking("Again")(client))]

    provider = Provider([FORBIDDEN, DONE])
    events = recorded_and_replayed(tmp_path, provider, twice)
    assert [e.terminal_reason for e in of_kind(events, Result)] == ["model_error", "completed"]
    assert len(provider.requests) == 2
    assert "refresh" not in (tmp_path / "fixture" / "recording.jsonl").read_text()


def test_a_token_provider_of_the_client_is_used() -> None:
    """A client with a token provider gets a new token after a 403."""
    forced_flags: list[bool] = []

    async def credentials(*, force_refresh: bool = False) -> AccessToken:
        forced_flags.append(force_refresh)
        return AccessToken("token-2" if force_refresh else "token-1")

    with Provider([FORBIDDEN, DONE]) as provider:
        url = provider.base_url

        async def ask(_: AsyncAnthropic) -> list[Any]:
            async with AsyncAnthropic(credentials=credentials, base_url=url) as client:
                return [event async for event in agent(client).stream("Go")]

        events = play(provider, ask)
    assert result_of(events).text == "Done."
    assert [h["authorization"] for h in provider.headers] == ["Bearer token-1", "Bearer token-2"]
    assert forced_flags == [False, True]
