"""An agent with state in its module (a history and caches) and a check of the final answer."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "quotes.py"


def answer(request: Request) -> Reply:
    import json

    if not request.results:
        return [call("price", article=each) for each in ("oak desk", "lamp", "chair")]
    total = sum(json.loads(each.text)["eur"] for each in request.results)
    return [text(f"All three cost {total:.2f} EUR")]


CASE = Case(
    name="quote_state",
    shape="raw SDK, sync, state in the module",
    tools="plain",
    failure="a wrong number early, fail(label) at the end",
    run=(PATH,),
    answer=answer,
    fails=r"6575.00 EUR",
    succeeds=r"657.50 EUR",
    fixes=(
        Change(
            "the conversion from cents to euros is corrected",
            (Edit(PATH, "return cents / 10\n", "return cents / 100\n"),),
        ),
        Change(
            "the catalog is changed to tenths of euros",
            (
                Edit(
                    PATH,
                    'return {"oak desk": 48900, "lamp": 3900, "chair": 12950}',
                    'return {"oak desk": 4890, "lamp": 390, "chair": 1295}',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "the cache has a limit",
            (
                Edit(
                    PATH,
                    "@functools.lru_cache(maxsize=None)\ndef price",
                    "@functools.lru_cache(maxsize=9)\ndef price",
                ),
            ),
        ),
        Change(
            "an additional variable",
            (Edit(PATH, "    return cents / 10\n", "    eur = cents / 10\n    return eur\n"),),
        ),
    ),
    named=r"quote-above-limit|\bprice\b",
    turns=(1, 2),
    tampered=Change(
        "a changed return value", (Edit(PATH, "    return offer\n", '    return "WRONG"\n'),)
    ),
)
