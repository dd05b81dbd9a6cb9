"""A recorded tool is wrong in the first turn, and a check at the end detects this; frozen with `--turn`."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "payroll.py"


def answer(request: Request) -> Reply:
    hours, wage, paid = (request.result(name) for name in ("hours", "wage", "pay"))
    if hours is None:
        return [call("hours", name="Ada")]
    if wage is None:
        return [call("wage", name="Ada")]
    if paid is None:
        return [call("pay", name="Ada", amount=float(hours.text) * int(wage.text))]
    return [text(paid.text)]


CASE = Case(
    name="payroll_early",
    shape="raw SDK, sync, three recorded tools, one mutating",
    tools="record_tool",
    failure="a wrong number early, fail(sentence) at the end, frozen with --turn",
    run=(PATH,),
    answer=answer,
    fails=r"paid 1180.0 to Ada",
    succeeds=r"paid 1500.0 to Ada",
    fixes=(
        Change(
            "all days are added",
            (Edit(PATH, "return sum(worked[1:])", "return sum(worked)"),),
            'assert step.tool("hours").text == "37.5"',
        ),
    ),
    wrong=(
        Change(
            "the sum is written differently",
            (Edit(PATH, "return sum(worked[1:])", "return sum(h for h in worked[1:])"),),
        ),
    ),
    named=r"hours|1180",
    turns=(1,),
    freeze=("--last-failed", "--turn", "1"),
    tampered=Change(
        "a changed return value", (Edit(PATH, "return r.content[0].text", "return 'WRONG'"),)
    ),
)
