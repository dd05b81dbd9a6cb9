"""Private models: prices of models whose names facts contain only as digests."""

from __future__ import annotations

from agentobs.ledger import PriceBook
from agentobs.recording.journal.home import Home
from agentobs.records.labels import digest_label
from agentobs.redaction import Redactor


def with_digests(book: PriceBook, home: Home) -> PriceBook:
    """Return a book that also knows the models of the user's price files by the digests that facts may contain.

    Raises:
        UsageError: a price file is malformed.
        HomeError: the key of the home cannot be read.
    """
    models = book.own_models()
    if not models:
        return book
    key = home.key()
    redactor = Redactor(key)
    return book.with_names(
        {str(digest_label(redactor.redact_text(name), key)): name for name in models}
    )
