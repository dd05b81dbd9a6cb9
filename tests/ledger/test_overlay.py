"""The overlay and the user's price file: their effects, their precedence, and their error messages for typos."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import genai_prices
import pytest

from agentobs.errors import UsageError
from agentobs.ledger import Context, PriceBook, book_of, current_prices, resolve, use_home
from agentobs.ledger.overlay import parse
from agentobs.ledger.price_book import ENVIRONMENT, FILE, price_version

SOURCE = 'source = "our contract"\nchecked = 2026-11-22\n'
AT = 1_795_000_000_000_000_000
"""2026-11-18."""


def prices_of(own: str, context: Context, prompt: int = 1) -> tuple[str, str, str, str | None]:
    """Return (input, output, certainty, note) of a price from a price file."""
    unit = PriceBook(own.encode()).at(context, AT, prompt)
    if unit.rates is None:
        return "", "", unit.certainty, unit.note
    return str(unit.rates.input), str(unit.rates.output), unit.certainty, unit.note


def test_the_built_in_overlay_has_dates_and_sources() -> None:
    """Every entry of the overlay of agentobs has a source and a date."""
    [ours] = PriceBook().overlays()
    entries = [*ours.price, *ours.factor, ours.web_search]
    assert len(entries) > 5
    for entry in entries:
        assert entry is not None
        assert "https://" in entry.source
        assert entry.checked >= date(2026, 11, 1)


def test_the_user_file_prices_an_unlisted_model() -> None:
    """The user's file sets the price of an unlisted model; factors, such as the batch factor, also apply to this
    price.
    """
    cache = "cache_read = 1\ncache_write_5m = 1\ncache_write_1h = 1\n"
    own = f'[[price]]\nmodels = ["my-model"]\ninput = 1.5\noutput = 2\n{cache}{SOURCE}'
    assert prices_of(own, Context("my-model")) == ("1.5", "2", "exact", "from our contract")
    assert prices_of(own, Context("my-model", "batch")) == (
        "0.75", "1.0", "exact", "from our contract; times 0.5 (batch)",
    )  # fmt: skip
    assert prices_of(own, Context("other-model")) == ("", "", "unknown_model", None)


def test_a_price_replaces_listed_prices() -> None:
    """A price without a context replaces the standard price and the listed batch price of the classes that it sets.

    Other classes keep their listed price. A price for a context applies only in that context.
    """  # fmt: skip
    plain = f'[[price]]\nmodels = ["claude-opus-5-5"]\ninput = 3\n{SOURCE}'
    assert prices_of(plain, Context("claude-opus-5-5-20260922")) == (
        "3",
        "20",
        "exact",
        "from our contract",
    )
    assert prices_of(plain, Context("claude-opus-5-5", "batch"))[:2] == ("1.5", "10.0")
    fast = plain.replace("input = 3", 'speed = "fast"\ninput = 9')
    assert prices_of(fast, Context("claude-opus-5-5")) == ("4", "20", "exact", None)
    assert prices_of(fast, Context("claude-opus-5-5", None, None, "fast"))[:2] == ("9", "40")
    both = plain.replace(
        "input = 3", 'speed = "fast"\nservice_tier = "batch"\ninput = 5\noutput = 6'
    )
    half = plain.replace("input = 3", 'service_tier = "batch"\noutput = 9') + plain
    assert prices_of(half, Context("claude-opus-5-5", "batch"))[:2] == ("1.5", "9")
    assert prices_of(both, Context("claude-opus-5-5", "batch", None, "fast")) == (
        "5", "6", "exact", "from our contract",
    )  # fmt: skip


def test_a_class_without_a_price_is_an_estimate() -> None:
    """A class without a price uses the input price, or the price of the shorter lifetime, and is an estimate with a
    note.

    Classes with a listed price keep it.
    """
    own = f'[[price]]\nmodels = ["my-model"]\ninput = 1\noutput = 2\ncache_read = 0.1\n{SOURCE}'
    assert prices_of(own, Context("my-model")) == (
        "1", "2", "estimated",
        "from our contract; no price for cache_write_5m: taken as input; no price for cache_write_1h: taken as input",
    )  # fmt: skip
    assert prices_of("", Context("claude-2.1"))[2:] == (
        "exact",
        None,
    )  # the model is older than the prompt cache


def test_the_user_file_takes_precedence() -> None:
    """A price in the user's file without a context replaces all listed prices, even prices with more conditions."""
    fast = Context("claude-opus-4-6", None, None, "fast")
    plain = f'[[price]]\nmodels = ["claude-opus-4-6"]\ninput = 3\noutput = 4\n{SOURCE}'
    assert prices_of("", fast)[:2] == ("30", "150")
    assert prices_of(plain, fast) == (
        "3", "4", "estimated", "from our contract; no price is listed for speed fast: taken as standard",
    )  # fmt: skip


def test_factors_with_the_same_name_apply_by_day() -> None:
    """A discount that changes is two entries with the same name, each of which applies on its own days."""
    one = f'[[factor]]\nname = "discount"\ntimes = 0.5\nuntil = 2027-01-01\n{SOURCE}'
    own = f'{one}[[factor]]\nname = "discount"\ntimes = 0.9\nsince = 2027-01-01\n{SOURCE}'
    book, model = PriceBook(own.encode()), Context("claude-opus-5-5")
    found = [book.at(model, AT + days * 86_400 * 10**9, 1).rates for days in (0, 60)]
    assert [str(rates and rates.input) for rates in found] == ["2.0", "3.6"]


def test_model_names_match_in_all_spellings() -> None:
    """A name in a price file matches the model in all spellings, but a dated ID matches only itself."""
    for name, usd in (("claude-opus-5.5", "1"), ("claude-opus-5-5-20260922", "4")):
        own = f'[[price]]\nmodels = ["{name}"]\ninput = 1\n{SOURCE}'
        assert prices_of(own, Context("claude-opus-5-5"))[0] == usd
        assert prices_of(own, Context("claude-opus-5-5-20260922"))[0] == "1"
    but = f'[[factor]]\nname = "x"\ntimes = 0.5\nexcept_models = ["claude-opus-5.5"]\n{SOURCE}'
    assert prices_of(but, Context("claude-opus-5-5"))[0] == "4"


def test_a_byte_order_mark_is_ignored() -> None:
    """A byte order mark, which some editors write, is ignored in a price file."""
    parse(
        b"\xef\xbb\xbf" + f'[[price]]\nmodels = ["a"]\ninput = 1\n{SOURCE}'.encode(), "prices.toml"
    )


def test_a_price_is_limited_by_day_and_prompt_size() -> None:
    """`since`, `until` and `prompt_tokens_above` limit a price; outside of these limits, the listed price applies."""
    own = (
        '[[price]]\nmodels = ["claude-opus-5-5"]\nsince = 2026-11-01\nuntil = 2026-12-01\n'
        f"prompt_tokens_above = 1000\ninput = 7\n{SOURCE}"
    )
    found = PriceBook(own.encode()).resolve(Context("claude-opus-5-5"))
    assert [(unit.valid_from_ns // 86_400_000_000_000, unit.prompt_tokens_from, str(unit.rates and unit.rates.input))
            for unit in found if unit.valid_from_ns >= 20_000 * 86_400_000_000_000] == [
        (20_740, 0, "4"), (20_740, 1001, "4"), (20_758, 0, "4"), (20_758, 1001, "7"), (20_788, 0, "4"),
        (20_788, 1001, "4"),
    ]  # fmt: skip


def test_a_factor_multiplies_all_token_prices() -> None:
    """A discount in the user's file multiplies all token prices, and replaces an earlier factor with the same name."""
    discount = f'[[factor]]\nname = "discount"\ntimes = 0.9\n{SOURCE}'
    assert prices_of(discount, Context("claude-opus-5-5"))[:3] == ("3.6", "18.0", "exact")
    at_home = f'[[factor]]\nname = "us"\ninference_geo = "us"\ntimes = 1\n{SOURCE}'
    assert prices_of(at_home, Context("claude-opus-5-5", None, "us"))[:3] == ("4", "20", "exact")
    fine = discount.replace("0.9", "0.333333")
    unit = PriceBook(fine.encode()).at(Context("claude-haiku-5-5"), AT, 1)
    assert unit.rates is not None
    assert str(unit.rates.cache_write_5m) == "0.041667"
    assert (unit.certainty, unit.note) == (
        "estimated",
        "times 0.333333 (discount); rounded to 6 digits",
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[[price]]\nmodels = [\"a\"]\ninputt = 3\n" + SOURCE, 3, "inputt is not a key here; expected one of"),
        ("[[price]]\nmodels = [\"a\"]\n" + SOURCE + "\n[[price]]\nmodel = [\"a\"]\n" + SOURCE, 7, "model is not a key"),
        ("[[prise]]\nmodels = [\"a\"]\n", 1, "prise is not a key here; expected one of price, factor, web_search"),
        ("[[price]]\nmodels = [\"a\"]\ninput = \"3\"\n" + SOURCE, 3, "input is '3'; expected a number without quotes"),
        ("[[price]]\nmodels = [\"a\"]\ninput = -3\n" + SOURCE, 3, "greater than or equal to 0"),
        ("[[price]]\nmodels = [\"a\"]\ninput = 0.12345678\n" + SOURCE, 3, "no more than 6 decimal places"),
        ("[[price]]\nmodels = [\"a\"]\ninput = nan\n" + SOURCE, 3, "input is"),
        ("[[price]]\nmodels = [\"a\"]\ninput = 1e400\n" + SOURCE, 3, "input is"),
        ("[[price]]\nmodels = \"a\"\n" + SOURCE, 2, "models is 'a', which is not allowed: input"),
        ("[[price]]\nmodels = [1]\n" + SOURCE, 2, "string"),
        ("[[price]]\nmodels = [\"a\"]\nsince = \"yesterday\"\n" + SOURCE, 3, "since is 'yesterday'"),
        ("[[price]]\nmodels = [\"a\"]\nsince = 2026-02-02\nuntil = 2026-01-01\ninput = 1\n" + SOURCE, 1,
         "since must be before"),
        ("# prices\n\n[[price]]\nmodels = [\"a\"]\nchecked = 2026-11-22\n", 3, "source is missing"),
        ("[[factor]]\nname = \"x\"\n" + SOURCE, 1, "times is missing"),
        ("[web_search]\nusd_per_thousand = true\n" + SOURCE, 2, "usd_per_thousand is True"),
        ("[[price]]\nmodels = [\"a\"\ninput = 3\n", 3, "not valid TOML"),
        ("price = 3\n", 1, "price is 3"),
        ("[[price]]\nmodels = [\"a\"]\n" + SOURCE, 1, "a price needs at least one of input, output"),
        ("[[price]]\nmodels = [\"a\"]\nservice_tier = \"bach\"\ninput = 1\n" + SOURCE, 3, "service_tier is 'bach'"),
        ("[[price]]\nmodels = [\"a\"]\nspeed = \"quick\"\ninput = 1\n" + SOURCE, 3, "speed is 'quick'"),
        ("[[price]]\nmodels = [\"a\"]\nsource = \"\"\"\n[[price]]\n\"\"\"\nchecked = 2026-01-01\ninput = 1\n[[price]]\n"
         "models = [\"b\"]\ninptu = 1\n", 10, "inptu is not a key"),
        ("[[price]]\nmodels = [\"a\"", 2, "not valid TOML"),
    ],
)  # fmt: skip
def test_a_typo_is_one_clear_error(text: str, line: int, words: str) -> None:
    """A typo in a price file is one error with the file, the line, the value that was found, and the expected value."""
    with pytest.raises(UsageError) as caught:
        parse(text.encode(), "prices.toml")
    assert caught.value.where == f"prices.toml, line {line}"
    assert words in caught.value.found
    assert caught.value.todo


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x00", b"[" * 100_000])
def test_bytes_that_are_not_toml_are_one_error(data: bytes) -> None:
    """A price file that is not TOML is one error."""
    with pytest.raises(UsageError):
        parse(data, "prices.toml")


def test_the_version_identifies_the_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version identifies genai-prices, the overlay of agentobs, and the user's file.

    The file in the environment takes precedence over the file in the home.
    """
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    plain = book_of(tmp_path)
    assert plain is book_of(None)
    assert plain.version.startswith(f"{genai_prices.__version__}+")
    (tmp_path / FILE).write_text(f'[[factor]]\nname = "a"\ntimes = 0.9\n{SOURCE}')
    own = book_of(tmp_path)
    assert own.version.startswith(f"{plain.version}+")
    other = tmp_path / "other.toml"
    other.write_text("")
    monkeypatch.setenv(ENVIRONMENT, str(other))
    assert book_of(tmp_path).version not in (own.version, plain.version)
    other.unlink()
    with pytest.raises(UsageError, match="cannot be read") as caught:
        book_of(tmp_path)
    assert caught.value.where == str(other)


def test_a_typo_does_not_stop_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the price file of a running agent is invalid, one warning reports this, and the listed prices apply."""
    path = tmp_path / FILE
    path.write_text("[[price]]\nmodel = 3\n")
    monkeypatch.setenv(ENVIRONMENT, str(path))
    use_home(tmp_path)
    try:
        with pytest.warns(
            RuntimeWarning, match=r"your prices are ignored: .*toml, line 2: model is not a key"
        ):
            found = resolve(Context("claude-opus-5-5"))
        assert found[-1].rates is not None
        assert found[-1].rates.input == Decimal(4)
        assert price_version() == PriceBook().version
    finally:
        monkeypatch.undo()
        current_prices.cache_clear()


@pytest.mark.slow
def test_prices_never_come_from_the_network() -> None:
    """Pricing a call opens no socket, and the updater of genai-prices does not change the prices."""
    code = """
import socket
def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot
set_custom_snapshot(DataSnapshot(providers=[], from_auto_update=True))
from agentobs.ledger import Context, Meter, resolve
meter = Meter()
meter.add("claude-opus-5-5", {"input_tokens": 1000000, "output_tokens": 0}, 1795000000 * 10**9)
print(meter.total().usd)
import sys, threading
print([n for n in sys.modules if n == "genai_prices.update_prices" and threading.active_count() > 1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == "4.000000000000\n[]\n"
    assert socket.socket.connect is not None


def test_the_price_of_a_cloud_platform() -> None:
    """Bedrock has its own list, in which a regional profile costs 10 % more. For a name that is in no list, the
    provider's price is used as an estimate, with a note.
    """
    regional = prices_of("", Context("us.anthropic.claude-sonnet-4-5-20250929-v1:0"))
    assert regional == ("3.3", "16.5", "exact", None)
    unlisted = prices_of("", Context("gateway/anthropic/claude-sonnet-4-5-v9"))
    assert unlisted == ("3", "15", "estimated", "the listed price of claude-sonnet-4-5")


def test_the_example_in_the_document_works(capsys: pytest.CaptureFixture[str]) -> None:
    """The price file in docs/prices.md is valid, and the code in the document prints the documented output."""
    text = (Path(__file__).parents[2] / "docs" / "prices.md").read_text()
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL))
    assert prices_of(blocks["toml"], Context("claude-opus-5-5"))[:3] == ("2.880", "14.4", "exact")
    assert prices_of(blocks["toml"], Context("claude-opus-5-5", "batch"), 200_001)[:2] == (
        "2.250",
        "7.20",
    )
    exec(compile(blocks["python"], "prices.md", "exec"), {})
    assert capsys.readouterr().out == blocks["text"]
