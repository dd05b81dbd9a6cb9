"""A langchain agent that ends with an exception in a tool."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text


def answer(request: Request) -> Reply:
    if not request.results:
        return [call("consumption", meter="M-3"), call("consumption", meter="M-9")]
    return [text(", ".join(f"{r.input['meter']} used {r.text}" for r in request.results))]


CASE = Case(
    name="meter_chain",
    shape="langchain",
    tools="record_tool",
    failure="exception raised in a tool",
    run=("meter.py",),
    answer=answer,
    fails=r"ValueError: could not convert string to float: '1,012.5'",
    succeeds=r"M-3 used 555.0 kWh, M-9 used",
    fixes=(
        Change(
            "the tool accepts thousands separators",
            (
                Edit(
                    "meter.py",
                    "(float(r) for r in READINGS[meter])",
                    '(float(r.replace(",", "")) for r in READINGS[meter])',
                ),
            ),
        ),
        Change(
            "the tool returns an error text",
            (
                Edit(
                    "meter.py",
                    "    before, now = (float(r) for r in READINGS[meter])\n",
                    "    try:\n"
                    "        before, now = (float(r) for r in READINGS[meter])\n"
                    "    except ValueError:\n"
                    '        return "an unreadable number"\n',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "a renamed variable",
            (
                Edit(
                    "meter.py",
                    "before, now = (float(r) for r in READINGS[meter])",
                    "old, new = (float(r) for r in READINGS[meter])",
                ),
                Edit("meter.py", "{now - before:.1f}", "{new - old:.1f}"),
            ),
        ),
    ),
    named=r"1,012\.5|ValueError|consumption",
    turns=(1,),
    tampered=Change(
        "a changed return value",
        (Edit("meter.py", 'return str(state["messages"][-1].text)', 'return "WRONG"'),),
    ),
    needs=("langchain==1.4.7", "langchain-anthropic==1.7.7"),
)
