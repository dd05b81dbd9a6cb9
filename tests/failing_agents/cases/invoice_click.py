"""A click command whose final answer cannot be parsed."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "invoices.py"


def answer(request: Request) -> Reply:
    if request.result("invoice_lines") is None:
        return [text("I read the invoice."), call("invoice_lines", order="B-2")]
    if "number alone" in request.prompt:
        return [text("93.60")]
    return [text("The total is 93.60 EUR")]


CASE = Case(
    name="invoice_click",
    shape="a click command, raw SDK",
    tools="record_tool",
    failure="exception while the final answer is parsed",
    run=(PATH, "B-2"),
    answer=answer,
    fails=r"InvalidOperation",
    succeeds=r"TOTAL 93.60 EUR",
    fixes=(
        Change(
            "the last number is used",
            (
                Edit(
                    PATH,
                    "last = text.split()[-1]\n",
                    'last = [w for w in text.split() if w[0].isdigit()][-1].rstrip(".")\n',
                ),
            ),
        ),
        Change(
            "the prompt asks for a number",
            (
                Edit(
                    PATH,
                    "of order {order} in {currency}?",
                    "of order {order} in {currency}? Answer with the number alone.",
                ),
            ),
            needs_provider=True,
        ),
    ),
    wrong=(
        Change(
            "a renamed variable",
            (
                Edit(PATH, "last = text.split()[-1]\n", "word = text.split()[-1]\n"),
                Edit(PATH, "return Decimal(last)", "return Decimal(word)"),
            ),
        ),
        Change(
            "the exception is caught and raised again",
            (
                Edit(
                    PATH,
                    "    return Decimal(last)\n",
                    "    try:\n"
                    "        return Decimal(last)\n"
                    "    except ArithmeticError as error:\n"
                    '        click.echo(f"bad total: {last}", err=True)\n'
                    "        raise error\n",
                ),
            ),
        ),
    ),
    named=r"InvalidOperation|ConversionSyntax",
    turns=(2,),
)
