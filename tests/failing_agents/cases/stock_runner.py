"""An agent of the SDK's tool runner; a tool raises an exception, and the agent reports a sentence."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "stock_agent.py"


def answer(request: Request) -> Reply:
    level, reserved = request.result("stock_level"), request.result("reserve")
    if level is None:
        return [text("One moment."), call("stock_level", sku="SKU 4471")]
    if level.is_error or "pieces" not in level.text:
        return [text("I cannot see our stock right now.")]
    if reserved is None:
        return [call("reserve", sku="4471", pieces=3)]
    return [text(f"I have {reserved.text} for you.")]


CASE = Case(
    name="stock_runner",
    shape="the SDK's tool runner, sync",
    tools="plain",
    failure="error result of the runner, fail(sentence)",
    run=(PATH,),
    answer=answer,
    fails=r"I cannot see our stock",
    succeeds=r"I have reserved 3 of 4471",
    fixes=(
        Change(
            "the tool accepts the prefix",
            (Edit(PATH, "number = sku\n", 'number = sku.removeprefix("SKU").strip()\n'),),
            'assert not step.tool("stock_level").is_error',
        ),
        Change(
            "the data contains the prefix",
            (
                Edit(
                    PATH,
                    "stock = dict(SHELVES)\n",
                    'stock = dict(SHELVES) | {f"SKU {k}": n for k, n in SHELVES}\n',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "a renamed variable",
            (
                Edit(PATH, "number = sku\n", "wanted = sku\n"),
                Edit(PATH, "{stock[number]} pieces", "{stock[wanted]} pieces"),
            ),
        ),
        Change(
            "an additional log line",
            (
                Edit(
                    PATH,
                    "    stock = dict(SHELVES)\n",
                    '    print("stock_level", sku)\n    stock = dict(SHELVES)\n',
                ),
            ),
        ),
    ),
    named=r"SKU 4471|stock_level|none was reserved",
    turns=(1,),
    tampered=Change(
        "a changed return value", (Edit(PATH, "    return answer\n", '    return "WRONG"\n'),)
    ),
)
