"""An agent on the loop of agentobs; a tool fails, and the agent reports a label."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "archivist.py"


def answer(request: Request) -> Reply:
    box, label = request.result("find_box"), request.result("label_box")
    if box is None:
        return [text("Looking."), call("find_box", year=2019)]
    if box.is_error:
        return [text("I could not find the box.")]
    if label is None:
        return [call("label_box", year=2019, label=box.text)]
    return [text(f"Done, {label.text}.")]


CASE = Case(
    name="own_loop",
    shape="agentobs.agent",
    tools="own loop",
    failure="error result, fail(label)",
    run=(PATH,),
    answer=answer,
    fails=r"I could not find the box",
    succeeds=r"Done, box 2019 is labeled tax, rent",
    fixes=(
        Change(
            "the key is converted to text",
            (Edit(PATH, '", ".join(BOXES[year])', '", ".join(BOXES[str(year)])'),),
            'assert step.tool("find_box").text == "tax, rent"',
        ),
        Change(
            "the data has numbers as keys",
            (Edit(PATH, '"2019": ["tax", "rent"], "2020"', '2019: ["tax", "rent"], "2020"'),),
        ),
    ),
    wrong=(
        Change(
            "an additional variable",
            (
                Edit(
                    PATH,
                    '    return ", ".join(BOXES[year])\n',
                    '    content = BOXES[year]\n    return ", ".join(content)\n',
                ),
            ),
        ),
    ),
    named=r"find_box|2019|no-label",
    turns=(1,),
    tampered=Change("a changed return value", (Edit(PATH, "return done.text", 'return "WRONG"'),)),
)
