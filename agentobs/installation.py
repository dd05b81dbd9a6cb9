"""The command that adds an extra to this installation of agentobs.

An extra comes from the same source as the installed package: a package index, a file, a repository or a checkout.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit

PACKAGE = "agentobs-kit"
"""The name of the package on an index."""


def install_extra(extra: str) -> str:
    """Return the shell command that installs an extra of agentobs into this environment.

    Args:
        extra: the name of the extra, such as `otlp`.
    """
    wanted = f"{PACKAGE}[{extra}]"
    source = _source()
    url = str(source.get("url", ""))
    path = unquote(urlsplit(url).path)
    if "dir_info" in source and path:
        is_editable = bool(source["dir_info"].get("editable"))
        return f"pip install {'-e ' if is_editable else ''}{shlex.quote(f'{path}[{extra}]')}"
    if "vcs_info" in source and url:
        info = source["vcs_info"]
        revision = info.get("requested_revision") or info.get("commit_id")
        at = f"@{revision}" if revision else ""
        wanted += f" @ {info.get('vcs', 'git')}+{url}{at}"
    elif url:
        wanted += f" @ {url}"
    return f"pip install '{wanted}'"


def _source() -> dict[str, Any]:
    """Return the content of `direct_url.json` (PEP 610); empty if the package is from an index or not installed."""
    try:
        found = json.loads(distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
