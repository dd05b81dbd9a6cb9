"""A session completes with a wrong answer, because a correct response is parsed incorrectly."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, text

PATH = "triage.py"


def answer(request: Request) -> Reply:
    if request.prompt.startswith("How urgent"):
        return [text("Nobody can pay. priority 1, team unclear.")]
    return [
        text(
            "It is not priority 3 as it looks, since the team web is idle: priority 1, team payments."
        )
    ]


CASE = Case(
    name="triage_wrong",
    shape="raw SDK, async, returns a dataclass",
    tools="none",
    failure="wrong answer because of the parser, frozen with --turn",
    run=(PATH,),
    answer=answer,
    fails=r"priority=3, team='web'",
    succeeds=r"priority=1, team='payments'",
    fixes=(
        Change(
            "the last match is used",
            (
                Edit(
                    PATH,
                    r're.search(r"priority (\d)", owner)',
                    r're.search(r".*priority (\d)", owner)',
                ),
                Edit(
                    PATH, r're.search(r"team (\w+)", owner)', r're.search(r".*team (\w+)", owner)'
                ),
            ),
        ),
        Change(
            "a pattern for the end of the text",
            (
                Edit(
                    PATH,
                    r're.search(r"priority (\d)", owner)',
                    r're.search(r"priority (\d), team", owner)',
                ),
                Edit(
                    PATH, r're.search(r"team (\w+)", owner)', r're.search(r"team (\w+)\.$", owner)'
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "a different character class", (Edit(PATH, r'r"priority (\d)"', 'r"priority ([0-9])"'),)
        ),
    ),
    named=r"Verdict|priority|\bweb\b|\bteam\b",
    turns=(2,),
    freeze=("SESSION", "--turn", "2"),
    completes=True,
    tampered=Change(
        "a changed return value",
        (Edit(PATH, "Verdict(ticket, int(priority[1]), team[1])", "Verdict(ticket, 9, team[1])"),),
    ),
)
