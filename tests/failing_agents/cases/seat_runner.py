"""An agent of the SDK's tool runner, async and streamed, with a recorded tool that raises an exception."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "seats.py"


def answer(request: Request) -> Reply:
    seats = request.result("free_seats")
    if seats is None:
        return [text("Let me see."), call("free_seats", train="ICE 602", first_class=False)]
    if seats.is_error:
        return [text("I found no seat, sorry.")]
    return [text(f"Take seat {seats.text}.")]


CASE = Case(
    name="seat_runner",
    shape="the SDK's tool runner, async, streamed",
    tools="record_tool",
    failure="error result of the runner, then an exception",
    run=(PATH,),
    answer=answer,
    fails=r"NoSeat",
    succeeds=r"Take seat 61",
    fixes=(
        Change(
            "the numbers are converted to text",
            (Edit(PATH, "FREE[train][coach])", "map(str, FREE[train][coach]))"),),
            'assert not step.tool("free_seats").is_error',
        ),
        Change("the data has seats as text", (Edit(PATH, '"2": [61]}', '"2": ["61"]}'),)),
    ),
    wrong=(
        Change(
            "an additional variable",
            (
                Edit(
                    PATH,
                    '    return ", ".join(FREE[train][coach])\n',
                    '    seats = FREE[train][coach]\n    return ", ".join(seats)\n',
                ),
            ),
        ),
        Change(
            "a different exception message",
            (Edit(PATH, "pieces, but no seat", "pieces and still no seat"),),
        ),
    ),
    named=r"free_seats|NoSeat|expected str instance",
    turns=(1,),
    tampered=Change(
        "a changed return value", (Edit(PATH, '"pieces": len(pieces)}', '"pieces": -1}'),)
    ),
)
