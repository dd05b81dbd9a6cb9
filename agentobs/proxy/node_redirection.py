"""Node.js programs without a variable for their base URL: a preloaded script sends their requests to the proxy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agentobs.proxy.client_variables import Upstream

SCRIPT = Path(__file__).with_name("node_preload.cjs")
REDIRECTED = "redirected-"
"""The start of the route of redirected requests. Their clients know only the URL of the provider."""
ROUTES = "AGENTOBS_NODE_ROUTES"
"""The variable with the routes of the script: for each base URL of a provider, the URL to send its requests to."""


def node_variables(environment: Mapping[str, str], routes: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Node.js load the script.

    Args:
        environment: the environment of the program.
        routes: for each base URL of a provider, the URL to send its requests to.
    """
    options = environment.get("NODE_OPTIONS", "")
    quoted = str(SCRIPT).replace("\\", "\\\\").replace('"', '\\"')
    return {
        "NODE_OPTIONS": f'{options} --require "{quoted}"'.strip(),
        ROUTES: json.dumps(dict(routes)),
    }


def node_routes(found: Sequence[Upstream], url: Callable[[Upstream], str]) -> dict[str, str]:
    """Return the routes of the base URLs that programs may contain; those without TLS are only used in variables.

    Args:
        found: where clients send requests.
        url: returns the URL to send the requests for an upstream to.
    """
    routes: dict[str, str] = {}
    for each in found:
        if urlsplit(each.url).scheme == "https":
            routes.setdefault(each.url, url(each))
    return routes
