"""A session completes with a wrong answer, because a recorded tool computes a wrong result."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text


def answer(request: Request) -> Reply:
    km = request.result("miles_to_km")
    if km is None:
        return [call("miles_to_km", miles=26.2)]
    return [text(f"That is {km.text} km.")]


CASE = Case(
    name="convert_wrong",
    shape="raw SDK, sync, in a package",
    tools="record_tool",
    failure="wrong answer because of a tool, frozen with --turn",
    run=("main.py",),
    answer=answer,
    fails=r"'km': 16\.3",
    succeeds=r"'km': 42\.2",
    fixes=(
        Change(
            "multiplication instead of division",
            (Edit("converter/units.py", "miles / MILE", "miles * MILE"),),
            'assert step.tool("miles_to_km").text == "42.2"',
        ),
        Change(
            "the inverse factor",
            (Edit("converter/units.py", "MILE = 1.609344", "MILE = 1 / 1.609344"),),
        ),
    ),
    wrong=(
        Change(
            "more digits in the constant",
            (Edit("converter/units.py", "MILE = 1.609344", "MILE = 1.6093440"),),
        ),
    ),
    named=r"miles_to_km|16\.3",
    turns=(1,),
    freeze=("SESSION", "--turn", "1"),
    completes=True,
    tampered=Change(
        "a changed return value", (Edit("converter/app.py", "float(answer.split()[2])}", "-1.0}"),)
    ),
)
