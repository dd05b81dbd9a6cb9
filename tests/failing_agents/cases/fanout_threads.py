"""Agents in threads that differ only in the block that they receive; their results are read as they complete."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "research.py"


def answer(request: Request) -> Reply:
    if request.prompt.startswith("Read your source"):
        source = request.result("read_source")
        if source is None:
            return [call("read_source")]
        return [text(source.text if source.text.isdigit() else "unknown")]
    if not request.results:
        return [
            text("Asking three."),
            *(call("delegate", topic=each) for each in ("rail", "air", "sea")),
        ]
    found = {each.input["topic"]: each.text for each in request.results}
    return [text(", ".join(f"{topic}: {found[topic]}" for topic in sorted(found)))]


CASE = Case(
    name="fanout_threads",
    shape="ThreadPoolExecutor and as_completed, agents identified by a ToolUseBlock",
    tools="plain",
    failure="a wrong result early, fail(sentence) at the end",
    run=(PATH,),
    answer=answer,
    fails=r"air: 211, rail: 1204, sea: unknown",
    succeeds=r"air: 211, rail: 1204, sea: 0",
    fixes=(
        Change(
            "no number counts as zero",
            (
                Edit(
                    PATH,
                    'return text.split()[0].replace(",", "")',
                    'return text.split()[0].replace(",", "").replace("n/a", "0")',
                ),
            ),
        ),
        Change(
            "the source has a number",
            (Edit(PATH, '"sea": "n/a"', '"sea": "0 million passengers"'),),
        ),
    ),
    wrong=(
        Change(
            "surrounding spaces are removed",
            (Edit(PATH, "    text = SOURCES[topic]\n", "    text = SOURCES[topic].strip()\n"),),
        ),
    ),
    named=r"missing in the answer|read_source|delegate",
    # Agents in the same lane share the turns of the lane.
    turns=tuple(range(1, 9)),
    tampered=Change(
        "a changed return value",
        (Edit(PATH, "            return text\n", '            return "WRONG"\n'),),
    ),
)
