"""The endpoint of a request as it is recorded in facts."""

from __future__ import annotations

import pytest

from agentobs.provider.anthropic.dialect import endpoint


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages?beta=true", "/v1/messages"),
        ("/v1/messages/batches/msgbatch_01Ab/results", "/v1/messages/batches/:id/results"),
        ("/v1/files/my-tax-return.pdf", "/v1/files/:id"),
        ("/v1/my%20whole%20prompt", "/v1/:id"),
        ("/v1/models/claude-sonnet-5", "/v1/models/:id"),
        ("/model/anthropic.claude/invoke", "/model/:id/invoke"),
        ("/", "/"),
    ],
)
def test_an_endpoint_contains_only_known_words(path: str, expected: str) -> None:
    """Parts of a path that a user may have chosen are replaced by `:id`."""
    assert endpoint(path) == expected
