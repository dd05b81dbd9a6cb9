"""The price book: the price of each token class for a context, an instant and a prompt size.

A context is resolved once, to unit prices that cover all times and all prompt sizes without gaps. Later lookups search
this short list. The prices come from `price_list` and `overlay`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from agentobs import world
from agentobs.errors import AgentobsError, UsageError, warn_once
from agentobs.ledger.rates import FOREVER, Context, UnitPrices
from agentobs.runtime import process

if TYPE_CHECKING:
    from agentobs.ledger.overlay import Overlay


ENVIRONMENT = "AGENTOBS_PRICES"
"""The environment variable with the path of the user's price file. Default: `prices.toml` in the home, if it exists."""
FILE = "prices.toml"
"""The name of the user's price file in a home."""

KNOWN_CONTEXTS = 4096
"""The maximum number of contexts that a book caches, so that an endless series of model names cannot fill memory."""

_INVALID_SIZE = "the number of tokens is out of range"

_BUILT_IN = Path(__file__).with_name("overlay.toml")


class PriceBook:
    """The prices of genai-prices, the overlay of agentobs, and the user's file, which takes precedence."""

    def __init__(self, user_file: bytes | None = None, where: str = FILE) -> None:
        """Create a book; the first lookup loads the price list.

        Args:
            user_file: the text of the user's price file; None if there is none.
            where: the path of that file, for errors.
        """
        self._user_file, self._where = user_file, where
        self._overlays: tuple[Overlay, ...] | None = None
        self._resolved: dict[Context, list[UnitPrices]] = {}
        self._names: Mapping[str, str] = {}
        digests = [
            _digest(_built_in_file()),
            *([_digest(user_file)] if user_file is not None else []),
        ]
        self.version = "+".join((version("genai-prices"), *digests))
        """The version of genai-prices, and the digests of the overlay of agentobs and of the user's file."""

    @property
    def has_user_file(self) -> bool:
        """Whether the user has a price file, which may be malformed."""
        return self._user_file is not None

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the price files that add to genai-prices; later files take precedence.

        Raises:
            UsageError: the user's file is malformed.
        """
        if self._overlays is None:
            # Importing pydantic takes 0.2 s, and most readers never look up a price.
            from agentobs.ledger.overlay import parse

            user_file = () if self._user_file is None else (parse(self._user_file, self._where),)
            self._overlays = (parse(_built_in_file(), _BUILT_IN.name), *user_file)
        return self._overlays

    def own_models(self) -> frozenset[str]:
        """Return the names of models in the user's price files.

        Raises:
            UsageError: a file is malformed.
        """
        own = self.overlays()[1:]  # the first one is the file of agentobs
        return frozenset(name for each in own for price in each.price for name in price.models)

    def with_names(self, names: Mapping[str, str]) -> PriceBook:
        """Return this book with other names of models.

        Args:
            names: the name in the price lists, by the other name, such as the digest that facts contain.
        """
        book = copy.copy(self)
        book._names, book._resolved = names, {}
        return book

    def resolve(self, context: Context) -> list[UnitPrices]:
        """Return the unit prices of a context: one per period and range of prompt sizes, without
        gaps.

        An unknown model has one entry without rates. The first call loads genai-prices, which takes
        0.4 s.

        Raises:
            UsageError: the user's file is malformed.
        """
        found = self._resolved.get(context)
        if found is None:
            from agentobs.ledger.price_list import unit_prices

            named = replace(context, model=self._names.get(context.model, context.model))
            found = unit_prices(named, self.overlays(), self.version)
            if named != context:
                found = [replace(unit, context=context) for unit in found]
            if len(self._resolved) < KNOWN_CONTEXTS:
                self._resolved[context] = found
        return found

    def at(self, context: Context, at_ns: int, prompt_tokens: int) -> UnitPrices:
        """Return the unit prices for an instant and a prompt size."""
        at_ns = min(max(at_ns, 0), FOREVER - 1)
        applicable = (unit for unit in self.resolve(context) if unit.applies(at_ns, prompt_tokens))
        return next(applicable, None) or self._no_price(context)

    def _no_price(self, context: Context) -> UnitPrices:
        """Return unknown prices, as the view `costs` does, for an impossible prompt size, such as a negative one."""
        return UnitPrices(
            context, 0, FOREVER, 0, FOREVER, None, "unknown_model", _INVALID_SIZE, self.version
        )


def book_of(home: Path | None) -> PriceBook:
    """Return the prices for a home. The user's file is the one named in the environment, or else the one in the home.

    Raises:
        UsageError: the file named in the environment cannot be read.
    """
    file_name = world.environ(ENVIRONMENT)
    path = Path(file_name) if file_name else home / FILE if home else None
    if path is None:
        return _cached_book(None, "")
    try:
        return _cached_book(path.read_bytes(), str(path))
    except OSError as error:
        if not file_name and isinstance(error, FileNotFoundError):
            return _cached_book(None, "")
        raise UsageError(
            f"the prices cannot be read: {error.strerror}",
            where=str(path),
            todo=f"Set {ENVIRONMENT} to a file of prices, or unset it",
        ) from error


class PriceSource:
    """The source of the current prices of this process."""

    def __init__(self) -> None:
        self.path: Path | None = None
        """The home; None if no home is used."""


def use_home(home: Path) -> None:
    """Use the prices of a home from now on; they are read at the first lookup."""
    process.state(PriceSource).path = home
    current_prices.cache_clear()


@cache
def current_prices() -> PriceBook:
    """Return the current prices of this process; an invalid user file is reported once and ignored."""
    source = process.state(PriceSource)
    try:
        book = book_of(source.path)
        if book.has_user_file:
            book.overlays()
    except AgentobsError as error:
        warn_once(f"your prices are ignored: {error}", about="own prices")
        return _cached_book(None, "")
    return book


def price_version() -> str:
    """Return the version of the current prices, without loading them."""
    return current_prices().version


def resolve(context: Context) -> list[UnitPrices]:
    """Return the unit prices of a context at the current prices."""
    return current_prices().resolve(context)


@cache
def _cached_book(user_file: bytes | None, where: str) -> PriceBook:
    return PriceBook(user_file, where)


@cache
def _built_in_file() -> bytes:
    return _BUILT_IN.read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()
