"""Node.js programs without a variable for their base URL: a preloaded script sends their requests to the proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agentobs.proxy.client_variables import Upstream

SCRIPT = Path(__file__).with_name("node_preload.cjs")
ROUTES = "AGENTOBS_NODE_ROUTES"
"""The variable with the routes of the script: for each base URL of a provider, the URL of the proxy."""


def node_variables(
    environment: Mapping[str, str], url: str, found: Sequence[Upstream]
) -> dict[str, str]:
    """Return the variables that make Node.js load the script.

    Args:
        environment: the environment of the program.
        url: the URL of the proxy.
        found: where the proxy sends requests.
    """
    routes: dict[str, str] = {}
    for each in found:
        if urlsplit(each.url).scheme == "https":
            routes.setdefault(each.url, f"{url}/{each.route}")
    options = environment.get("NODE_OPTIONS", "")
    quoted = str(SCRIPT).replace("\\", "\\\\").replace('"', '\\"')
    return {
        "NODE_OPTIONS": f'{options} --require "{quoted}"'.strip(),
        ROUTES: json.dumps(routes),
    }
