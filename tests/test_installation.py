"""Hints name the command that works for this installation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentobs import installation
from agentobs.agent import sdk_version
from agentobs.errors import UsageError

WHEEL = "file:///tmp/dist/agentobs_kit-0.1.0-py3-none-any.whl"
GIT = "https://github.com/example/agentobs.git"
SOURCES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "index": (None, "pip install 'agentobs-kit[otlp]'"),
    "checkout": (
        {"dir_info": {"editable": True}, "url": "file:///home/me/agent%20obs"},
        "pip install -e '/home/me/agent obs[otlp]'",
    ),
    "folder": (
        {"dir_info": {}, "url": "file:///home/me/agentobs"},
        "pip install '/home/me/agentobs[otlp]'",
    ),
    "wheel": ({"archive_info": {}, "url": WHEEL}, f"pip install 'agentobs-kit[otlp] @ {WHEEL}'"),
    "repository": (
        {"vcs_info": {"vcs": "git", "commit_id": "abc"}, "url": GIT},
        f"pip install 'agentobs-kit[otlp] @ git+{GIT}@abc'",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_extra_is_installed_from_the_source_of_the_package(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command repeats the source of the installed package, which may not be on any index."""
    source, expected = SOURCES[name]

    class Installed:
        def read_text(self, file: str) -> str | None:
            assert file == "direct_url.json"
            return None if source is None else json.dumps(source)

    monkeypatch.setattr(installation, "distribution", lambda package: Installed())
    assert installation.install_extra("otlp") == expected


@pytest.mark.parametrize("found", ["0.40.0", "1.17.0", "2.11.9"])
def test_an_old_sdk_is_named(found: str) -> None:
    """The agent loop names the installed version of the SDK and the version that it needs."""
    with pytest.raises(UsageError, match=rf"needs anthropic 2\.12 or newer, and {found} is"):
        sdk_version.check(found)


@pytest.mark.parametrize("found", ["2.12.0", "2.14.1", "3.0.0"])
def test_a_new_sdk_is_accepted(found: str) -> None:
    """Every later version is accepted."""
    sdk_version.check(found)
