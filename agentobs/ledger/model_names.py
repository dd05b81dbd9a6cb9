"""Model names: one canonical name for all spellings of a model.

  claude-sonnet-4-5-20250929, claude-sonnet-4-5-latest, claude-sonnet-4.5, claude-4-5-sonnet,
  us.anthropic.claude-sonnet-4-5-20250929-v1:0, claude-sonnet-4-5@20250929   ->  claude-sonnet-4-5

Canonical names are for grouping; prices do not depend on them. The names on cloud platforms are from
platform.claude.com/docs/en/about-claude/models/overview, 2026-11.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PLATFORM_PREFIX = re.compile(r"^.*(?=claude-)", re.DOTALL)
"""The platform prefix: `anthropic/`, `us.anthropic.`, `arn:aws:bedrock:...:`, `publishers/anthropic/models/`."""
_RELEASE_SUFFIX = re.compile(
    r"(?:\[\w+\]"  # a client's context window suffix, as in `claude-opus-5[1m]`
    r"|[-@](?:20\d{6}|20\d\d-\d\d-\d\d|latest|default)"
    r"|(?<=\d)-preview"  # claude-mythos-preview is the name of a model
    r"|-v[1-9](?::\d+)?(?::\d+k)?"  # a platform's revision
    r")$"
)
_CLIENT_SUFFIX = re.compile(r"(?:-latest)?(?:\[\w+\])?$")
_FAMILY_LAST = re.compile(r"claude-(\d+)(?:-(\d))?-([a-z]+)$")
_FAMILY_FIRST = re.compile(r"claude-([a-z]+)-(\d+)(?:-(\d+))?$")


@lru_cache(maxsize=4096)
def canonical_model(name: str) -> str:
    """Return the canonical name of a Claude model; any other name is returned unchanged."""
    if "claude-" not in name or len(name) > 256:
        return name
    bare = _PLATFORM_PREFIX.sub("", name)
    # claude-v1, claude-v1.3, claude-v1-100k, claude-instant-v1.2, and the platform's claude-v2:1
    old = re.match(r"claude-(instant-)?v(\d)(?:[.:](\d+))?(?![\d.])", bare)
    if old:
        version = old[2] + (f".{old[3]}" if old[3] and old[3] != "0" else "")
        return f"claude-{old[1] or ''}{version}"
    while (shorter := _RELEASE_SUFFIX.sub("", bare)) != bare:
        bare = shorter
    if re.fullmatch(r"claude-(?:[12]|instant-1)(?:[.]\d)?", bare):
        return bare.removesuffix(".0")
    return _with_period_order(bare.replace(".", "-"))


def same_model(name: str) -> str:
    """Return a name without what does not select another model or price: a client's `[1m]`, and `-latest`.

    `claude-opus-5[1m]` is Claude Code's name for `claude-opus-5` with a window of a million tokens. Prices of longer
    prompts depend on the size of the prompt, not on this name.
    """
    return _CLIENT_SUFFIX.sub("", name) if "claude-" in name else name


def _with_period_order(bare: str) -> str:
    """Order family and version as the provider did when the model appeared: the version first before version 4
    (`claude-3-5-sonnet`), the family first since then (`claude-sonnet-4-5`).
    """
    last, first = _FAMILY_LAST.match(bare), _FAMILY_FIRST.match(bare)
    if last:
        major, minor, family = last.groups()
    elif first:
        family, major, minor = first.groups()
    else:
        return bare
    version = major if minor in (None, "0") else f"{major}-{minor}"
    return f"claude-{version}-{family}" if int(major) < 4 else f"claude-{family}-{version}"
