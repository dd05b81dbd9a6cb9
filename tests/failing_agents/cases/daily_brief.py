"""The prompt contains a date and a UUID, and a recorded tool returns an error result."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "brief.py"


def answer(request: Request) -> Reply:
    plan = request.result("room_plan")
    if plan is None:
        return [call("room_plan", room="Lab 2")]
    if plan.is_error:
        return [text("I could not read the plan.")]
    return [text(f"Today: {plan.text}")]


CASE = Case(
    name="daily_brief",
    shape="raw SDK, async, a date and a UUID in the prompt",
    tools="record_tool",
    failure="error result for an exception, fail(label)",
    run=(PATH,),
    answer=answer,
    fails=r"I could not read the plan",
    succeeds=r"Today: 08:15 Robotics",
    fixes=(
        Change(
            "the parser accepts hours of one digit",
            (
                Edit(
                    PATH,
                    "hour, minute = int(start[0:2]), int(start[3:5])",
                    'hour, minute = map(int, start.split(":"))',
                ),
            ),
            'assert not step.tool("room_plan").is_error',
        ),
        Change(
            "the data has hours of two digits",
            (Edit(PATH, '("8:15", "Robotics")', '("08:15", "Robotics")'),),
        ),
    ),
    wrong=(
        Change(
            "one line is split into two",
            (
                Edit(
                    PATH,
                    "        hour, minute = int(start[0:2]), int(start[3:5])\n",
                    "        hour = int(start[0:2])\n        minute = int(start[3:5])\n",
                ),
            ),
        ),
        Change(
            "a different error text",
            (
                Edit(
                    PATH,
                    'f"{type(exc).__name__}: {exc}", True',
                    'f"the plan is broken: {exc}", True',
                ),
            ),
            only_with_assertion=True,
        ),
    ),
    named=r"invalid literal|ValueError|room_plan|brief-without-plan",
    turns=(1,),
    freeze=("--last-failed", "--apply"),
    tampered=Change(
        "a changed return value", (Edit(PATH, "    return answer\n", '    return "WRONG"\n'),)
    ),
)
