"""Two agents with the same prompt in a TaskGroup; a tool is wrong early, and a check at the end detects this."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "count.py"


def answer(request: Request) -> Reply:
    found = {each.input["kind"]: each.text for each in request.results}
    if not found:
        return [call("count", kind="crate")]
    if "drum" not in found:
        return [call("count", kind="drum")]
    return [text(f"I counted {found['crate']} crates and {found['drum']} drums.")]


CASE = Case(
    name="twin_counters",
    shape="asyncio.TaskGroup, two agents with one prompt",
    tools="plain",
    failure="a wrong number early, fail(sentence) at the end",
    run=(PATH,),
    answer=answer,
    fails=r"'crates': 78",
    succeeds=r"'crates': 73, 'drums': 27",
    fixes=(
        Change(
            "damaged items are not counted",
            (Edit(PATH, "if kind in what:", 'if kind in what and "damaged" not in what:'),),
        ),
        Change(
            "only items whose name starts with the kind are counted",
            (Edit(PATH, "if kind in what:", "if what.startswith(kind):"),),
        ),
    ),
    wrong=(
        Change(
            "the sum is written differently", (Edit(PATH, "total += n\n", "total = total + n\n"),)
        ),
        Change(
            "the counts are printed",
            (
                Edit(
                    PATH,
                    "    if found != EXPECTED:\n",
                    "    print(sorted(found))\n    if found != EXPECTED:\n",
                ),
            ),
        ),
    ),
    named=r"counted 78|\bcount\b",
    # Agents in the same lane share the turns of the lane.
    turns=tuple(range(1, 7)),
    tampered=Change(
        "a changed return value", (Edit(PATH, "    return found\n", '    return "WRONG"\n'),)
    ),
)
