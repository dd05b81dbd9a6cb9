"""Parallel tools in a thread pool, one of which raises an exception."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text


def answer(request: Request) -> Reply:
    results = request.results
    if not results:
        return [call("best_offer", article=each) for each in ("kiln", "wheel", "glaze")]
    offers = [f"{each.input['article']} at {each.text}" for each in results]
    return [text("; ".join(offers))]


CASE = Case(
    name="price_scout",
    shape="raw SDK, ThreadPoolExecutor, parallel tools",
    tools="record_tool",
    failure="exception raised in a tool",
    run=("scout.py",),
    answer=answer,
    fails=r"KeyError: 'CHF'",
    succeeds=r"kiln at .*; wheel at Ohio Clay: 588.80 EUR; glaze at",
    fixes=(
        Change(
            "the missing rate is added",
            (Edit("scout.py", '"USD": 0.92}', '"USD": 0.92, "CHF": 1.06}'),),
            'assert not step.tool("best_offer").is_error',
        ),
        Change(
            "unknown currencies are skipped",
            (
                Edit(
                    "scout.py",
                    "        rate = RATES[currency]\n",
                    "        if currency not in RATES:\n            continue\n"
                    "        rate = RATES[currency]\n",
                ),
            ),
        ),
        Change(
            "the exception becomes an error result",
            (
                Edit(
                    "scout.py",
                    "    offer = best_offer(**block.input)\n",
                    "    try:\n"
                    "        offer = best_offer(**block.input)\n"
                    "    except KeyError as e:\n"
                    '        return {"type": "tool_result", "tool_use_id": block.id,'
                    ' "content": f"no rate for {e}", "is_error": True}\n',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "the exception is caught and raised again",
            (
                Edit(
                    "scout.py",
                    "        rate = RATES[currency]\n",
                    "        try:\n"
                    "            rate = RATES[currency]\n"
                    "        except KeyError:\n"
                    '            print("no rate for", currency)\n'
                    "            raise\n",
                ),
            ),
        ),
    ),
    named=r"KeyError|CHF|best_offer",
    turns=(1,),
    tampered=Change(
        "a changed return value",
        (Edit("scout.py", 'return "".join(b.text for b in answer.content)', 'return "WRONG"'),),
    ),
)
