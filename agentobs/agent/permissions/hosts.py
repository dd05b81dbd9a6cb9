"""Match hosts and URLs in all their spellings.

A host can be written in many ways: with capitals, a trailing dot or international letters, or as an address that is one
number. Programs interpret some of these spellings differently, so a host is represented by the set of its possible
interpretations.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from agentobs.agent.permissions.globs import fits

Match = Literal["yes", "no", "doubt"]
"""Whether a rule or a pattern matches; `doubt` if it may match."""

LENGTH_MAX = 8192
"""Maximum length of hosts and URLs, in characters; longer ones are not parsed. Our choice."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\<>^|`{}\"']")
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,}[^\s'\"<>|;&()`]+")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_NAME_IN_TEXT = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\s'\"<>|;&()`,=@/\[\]{}$!#?*\\:]+")


@functools.lru_cache(maxsize=1024)
def interpretations(host: str) -> frozenset[str]:
    """Return all interpretations of a host, or of the host in a URL, as names and addresses.

    The result is empty if the host is invalid.
    """
    found: set[str] = set()
    for bare in _bare_hosts(host):
        if ":" in bare:
            found |= _address_6(bare)
            continue
        names = _names(bare)
        found |= names.union(*map(_address_4, names))
    return frozenset(found)


def host_may_fit(pattern: str, host: str) -> bool:
    """Return whether any interpretation of a host matches a pattern.

    A pattern is a name, `*.` followed by a name, an address, a network, or `*`. `*.example.com` matches every name
    below `example.com`, but not `example.com` itself.
    """
    return any(_interpretation_fits(pattern, each) for each in interpretations(host))


def host_fits(pattern: str, host: str) -> bool:
    """Return whether every interpretation of a host matches a pattern."""
    found = interpretations(host)
    return bool(found) and all(_interpretation_fits(pattern, each) for each in found)


def is_host_pattern(pattern: str) -> bool:
    """Return whether a pattern is valid for hosts."""
    if pattern == "*" or _network(pattern) is not None:
        return True
    if "/" in pattern and "://" not in pattern:
        return False
    return "*" not in pattern.removeprefix("*.") and bool(
        interpretations(pattern.removeprefix("*."))
    )


def blocked_host(hosts: Iterable[str], blocked: Sequence[str]) -> str | None:
    """Return the first blocked host; None if there is none.

    If any host is blocked, a host that cannot be parsed counts as blocked.
    """
    if not blocked:
        return None
    for host in hosts:
        if not interpretations(host) or any(host_may_fit(pattern, host) for pattern in blocked):
            return host
    return None


def blocked_in_text(text: str, blocked: Sequence[str]) -> str | None:
    """Return a blocked host that occurs in a text, such as a command; None if no host is found.

    This search can miss hosts, because a text can hide them.
    """
    if not blocked:
        return None
    named = [pattern for pattern in blocked if pattern != "*"]
    words = {name for name in _NAME_IN_TEXT.findall(text) if not _NUMBER.fullmatch(name)}
    url = blocked_host(filter(interpretations, _URL_IN_TEXT.findall(text)), blocked)
    return url if url is not None else blocked_host(sorted(filter(interpretations, words)), named)


def is_url(text: str) -> bool:
    """Return whether a text starts with a URL scheme."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def url_fits(pattern: str, url: str) -> Match:
    """Return whether a URL matches a pattern such as `https://*.example.com/docs/*`.

    Scheme, host and port are compared separately. `*` matches any characters of the path and the query. If programs
    may interpret the URL differently, a possible match is in doubt.
    """
    scheme, _, rest = pattern.partition("://")
    authority, slash, path = rest.partition("/")
    name, port = _without_port(authority)
    parts = _split(url)
    if parts is None:
        return "doubt"
    if not fits(scheme.lower(), parts.scheme.lower()) or not host_may_fit(name, url):
        return "no"
    if port and port != str(_port(parts)):
        return "no"
    if not port and _port(parts) != _PORTS.get(parts.scheme.lower()):
        return "doubt"
    query = f"?{parts.query}" if parts.query else ""
    if _is_ambiguous(parts) or not host_fits(name, url):
        return "doubt"
    return "yes" if fits(slash + path or "/", (parts.path or "/") + query) else "no"


_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}


def _is_ambiguous(parts: SplitResult) -> bool:
    """Return whether programs may interpret a URL differently, because it has user info or `..` in its path."""
    path = parts.path
    for _ in range(3):
        path = unquote(path)
    return (
        "@" in parts.netloc or "\\" in path or any(each in (".", "..") for each in path.split("/"))
    )


def _split(url: str) -> SplitResult | None:
    if _FORBIDDEN.search(url) or not _SCHEME.match(url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.netloc else None


def _port(parts: SplitResult) -> int | None:
    return parts.port or _PORTS.get(parts.scheme.lower())


def _without_port(authority: str) -> tuple[str, str]:
    host, colon, port = authority.rpartition(":")
    return (host, port) if colon and port.isdecimal() and "]" not in port else (authority, "")


def _bare_hosts(host: str) -> list[str]:
    """Return the host of a URL or text, without scheme, user info, port, path and brackets.

    The result has two hosts if programs would find different hosts, and is empty if the text is invalid.
    """
    if not host or len(host) > LENGTH_MAX or _FORBIDDEN.search(host):
        return []
    if scheme := _SCHEME.match(host):
        host = host[scheme.end() :]
    authority = host.removeprefix("//").partition("/")[0]
    strict = re.split(r"[?#]", authority, maxsplit=1)[0].rpartition("@")[2]
    loose = re.split(r"[?#]", authority.rpartition("@")[2], maxsplit=1)[0]
    found = [_without_brackets(each) for each in dict.fromkeys((strict, loose))]
    return [each for each in found if each] if all(found) else []


def _without_brackets(host: str) -> str | None:
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if port and not port.isdecimal():
            return None
    host = unquote(host) if ":" not in host else host.partition("%")[0]
    return None if _FORBIDDEN.search(host) or re.search(r"[/?#@%]", host) else host


def _names(host: str) -> set[str]:
    """Return the ASCII forms of a host name; two if programs encode its letters differently."""
    folded = unicodedata.normalize("NFKC", host).replace("\u3002", ".").lower().rstrip(".")
    found: set[str] = set()
    if re.search(r"[/?#@:%\\\s]", folded):
        return found
    if folded.isascii():
        found.add(folded)
    else:
        for encode in (_punycode, _idna_2003):
            try:
                found.add(encode(folded))
            except (UnicodeError, IndexError):
                continue
    return {name for name in found if name and ".." not in name}


def _punycode(host: str) -> str:
    """Return a host name in Punycode as newer programs encode it, with its letters unchanged (`ß` stays)."""
    labels = host.replace("\u00ad", "").replace("\u200b", "").split(".")
    return ".".join(
        label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
        for label in labels
    )


def _idna_2003(host: str) -> str:
    """Return a host name as older programs encode it (`ß` becomes `ss`)."""
    return host.encode("idna").decode("ascii").lower()


def _address_4(name: str) -> set[str]:
    """Return the addresses that a name of up to four numbers (decimal, octal or hexadecimal) can mean."""
    numbers = name.split(".")
    if len(numbers) > 4:
        return set()
    found = set()
    for base in (8, 10):
        try:
            values = [_number(number, base) for number in numbers]
        except ValueError:
            continue
        *first, last = values
        if all(value < 256 for value in first) and last < 256 ** (5 - len(values)):
            number = last
            for index, value in enumerate(first):
                number += value << 8 * (3 - index)
            found.add(str(ipaddress.IPv4Address(number)))
    return found


def _number(text: str, base_of_zero: int) -> int:
    if not re.fullmatch(r"0x[0-9a-f]{0,16}|[0-9]{1,16}", text):
        raise ValueError(text)
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, base_of_zero if text.startswith("0") else 10)


def _address_6(text: str) -> frozenset[str]:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return frozenset()
    found = {str(address)}
    packed = address.packed
    inner = [address.ipv4_mapped, address.sixtofour]
    if (
        packed[:12] in (bytes(12), bytes.fromhex("0064ff9b0000000000000000"))
        and int(address) > 0xFFFF
    ):
        inner.append(ipaddress.IPv4Address(packed[12:]))
    return frozenset(found | {str(each) for each in inner if each is not None})


def _interpretation_fits(pattern: str, interpretation: str) -> bool:
    if pattern == "*":
        return True
    network = _network(pattern)
    if network is not None:
        return _is_in_network(interpretation, network)
    if pattern.startswith("*."):
        return any(interpretation.endswith("." + name) for name in interpretations(pattern[2:]))
    return interpretation in interpretations(pattern)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@functools.lru_cache(maxsize=1024)
def _network(pattern: str) -> _Network | None:
    if not re.fullmatch(r"[0-9A-Fa-f:.]+/[0-9]{1,3}", pattern):
        return None
    try:
        return ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None


def _is_in_network(name: str, network: _Network) -> bool:
    try:
        return ipaddress.ip_address(name) in network
    except ValueError:
        return False
