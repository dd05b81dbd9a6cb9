"""The price book: the price of each token class for a context, an instant and a prompt size.

A context is resolved once to unit prices that cover all time and all sizes without gaps; later
lookups search a short list. The prices come from `price_list` and `overlay`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from agentobs import world
from agentobs.errors import AgentobsError, UsageError, say_once
from agentobs.ledger.rates import FOREVER, Context, UnitPrices
from agentobs.runtime import process

if TYPE_CHECKING:
    from agentobs.ledger.overlay import Overlay


ENVIRONMENT = "AGENTOBS_PRICES"
"""Names the user's own price file; by default `prices.toml` in the home, if it exists."""
FILE = "prices.toml"
"""The name of the user's own price file in a home."""

KNOWN_CONTEXTS = 4096
"""How many contexts a book caches, so that a provider with ever new model names cannot fill the memory."""

_NO_SIZE = "the number of tokens is out of range"

_OURS = Path(__file__).with_name("overlay.toml")


class PriceBook:
    """The prices of genai-prices, of our overlay, and of the user's file, which takes precedence."""

    def __init__(self, own: bytes | None = None, where: str = FILE) -> None:
        """Take the text of the user's file, if there is one. The first lookup loads the price list."""
        self._own, self._where = own, where
        self._overlays: tuple[Overlay, ...] | None = None
        self._found: dict[Context, list[UnitPrices]] = {}
        digests = [_digest(_ours()), *([_digest(own)] if own is not None else [])]
        self.version = "+".join((version("genai-prices"), *digests))
        """The version of genai-prices, the digest of our overlay, and that of the user's file."""

    @property
    def has_own(self) -> bool:
        """Whether the user has a price file, which may be malformed."""
        return self._own is not None

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the price files in addition to genai-prices; later ones take precedence.

        Raises:
            UsageError: the user's file is malformed.
        """
        if self._overlays is None:
            # Importing pydantic takes 0.2 s, and most readers never look up a price.
            from agentobs.ledger.overlay import parse

            own = () if self._own is None else (parse(self._own, self._where),)
            self._overlays = (parse(_ours(), _OURS.name), *own)
        return self._overlays

    def resolve(self, context: Context) -> list[UnitPrices]:
        """Return the unit prices of a context: one per period and range of prompt sizes, without
        gaps.

        An unknown model has one entry without rates. The first call loads genai-prices, which takes
        0.4 s.

        Raises:
            UsageError: the user's file is malformed.
        """
        found = self._found.get(context)
        if found is None:
            from agentobs.ledger.price_list import unit_prices

            found = unit_prices(context, self.overlays(), self.version)
            if len(self._found) < KNOWN_CONTEXTS:
                self._found[context] = found
        return found

    def at(self, context: Context, at_ns: int, prompt_tokens: int) -> UnitPrices:
        """Return the unit prices for an instant and a prompt size."""
        at_ns = min(max(at_ns, 0), FOREVER - 1)
        holding = (unit for unit in self.resolve(context) if unit.holds(at_ns, prompt_tokens))
        return next(holding, None) or self._no_price(context)

    def _no_price(self, context: Context) -> UnitPrices:
        """Return empty prices for an impossible prompt size, such as a negative one, as in the view `costs`."""
        return UnitPrices(
            context, 0, FOREVER, 0, FOREVER, None, "unknown_model", _NO_SIZE, self.version
        )


def book_of(home: Path | None) -> PriceBook:
    """Return the prices for a home: from the file named in the environment, else from the home's own file.

    Raises:
        UsageError: the file named in the environment cannot be read.
    """
    named = world.environ(ENVIRONMENT)
    path = Path(named) if named else home / FILE if home else None
    if path is None:
        return _book(None, "")
    try:
        return _book(path.read_bytes(), str(path))
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError):
            return _book(None, "")
        raise UsageError(
            f"the prices cannot be read: {error.strerror}",
            where=str(path),
            todo=f"Set {ENVIRONMENT} to a file of prices, or unset it",
        ) from error


class Prices:
    """Where the current prices of this process come from."""

    def __init__(self) -> None:
        self.path: Path | None = None


def use_home(home: Path) -> None:
    """Use the prices of a home as the current ones; they are read at the first lookup."""
    process.part(Prices).path = home
    in_force.cache_clear()


@cache
def in_force() -> PriceBook:
    """Return the current prices of this process; an invalid user file is reported once and ignored."""
    prices = process.part(Prices)
    try:
        book = book_of(prices.path)
        if book.has_own:
            book.overlays()
    except AgentobsError as error:
        say_once(f"your prices are ignored: {error}", about="own prices")
        return _book(None, "")
    return book


def price_version() -> str:
    """Return the version of the current prices, without loading them."""
    return in_force().version


def resolve(context: Context) -> list[UnitPrices]:
    """Return the unit prices of a context at the current prices."""
    return in_force().resolve(context)


@cache
def _book(own: bytes | None, where: str) -> PriceBook:
    return PriceBook(own, where)


@cache
def _ours() -> bytes:
    return _OURS.read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()
