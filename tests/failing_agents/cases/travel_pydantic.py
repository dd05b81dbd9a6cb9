"""A pydantic-ai agent; a tool requests retries until the framework gives up."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "travel/planner.py"


def answer(request: Request) -> Reply:
    booked = request.result("book_train")
    if booked and "ICE" in booked.text:
        return [text(f"Booked: {booked.text}")]
    return [call("book_train", to="Hamburg", day="2026-12-02", seats=2)]


CASE = Case(
    name="travel_pydantic",
    shape="pydantic-ai",
    tools="plain",
    failure="retry storm until the framework raises",
    run=("-m", "travel"),
    answer=answer,
    fails=r"UnexpectedModelBehavior",
    succeeds=r"Booked: .*ICE 602",
    fixes=(
        Change(
            "the correct date format",
            (Edit(PATH, '"%d.%m.%Y"', '"%Y-%m-%d"'),),
            'assert not step.tool("book_train").is_error',
        ),
        Change(
            "ISO dates are accepted, too",
            (
                Edit(
                    PATH,
                    '            raise ModelRetry(f"{day} is not a day") from error\n',
                    "            try:\n"
                    "                when = datetime.fromisoformat(day)\n"
                    "            except ValueError:\n"
                    '                raise ModelRetry(f"{day} is not a day") from error\n',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "the exception handler is rewritten",
            (
                Edit(
                    PATH,
                    '            raise ModelRetry(f"{day} is not a day") from error\n',
                    '            complaint = f"{day} is not a day"\n'
                    "            raise ModelRetry(complaint) from error\n",
                ),
            ),
        ),
    ),
    named=r"book_train|not a day|UnexpectedModelBehavior",
    turns=(1, 2, 3, 4),
    tampered=Change(
        "a changed return value", (Edit(PATH, "return result.output", 'return "WRONG"'),)
    ),
)
