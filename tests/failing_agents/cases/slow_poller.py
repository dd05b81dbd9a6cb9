"""20 seconds of sleep between turns: polls until its own cap raises."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "poller.py"


def answer(request: Request) -> Reply:
    status = request.result("job_status")
    if status and "finished" in status.text:
        return [text("render-8 is finished.")]
    return [call("job_status", job="render-8")]


CASE = Case(
    name="slow_poller",
    shape="raw SDK, sync, 20 s of sleep between turns",
    tools="plain",
    failure="endless loop until a cap raises",
    run=(PATH,),
    answer=answer,
    fails=r"TimeoutError: render-8 is still running after 3 polls",
    succeeds=r"render-8 is finished\.",
    fixes=(
        Change(
            "what follows DONE does not matter",
            (Edit(PATH, 'if raw == "DONE":', 'if raw.startswith("DONE"):'),),
        ),
        Change(
            "the comment is cut off",
            (Edit(PATH, "raw = JOBS[job]\n", 'raw = JOBS[job].partition(" (")[0]\n'),),
        ),
    ),
    wrong=(
        Change("slower polls", (Edit(PATH, "POLL_SECONDS = 20", "POLL_SECONDS = 25"),)),
        Change(
            "the cap prints first",
            (
                Edit(
                    PATH,
                    "            if polls == 3:\n",
                    '            print("poll", polls)\n            if polls == 3:\n',
                ),
            ),
        ),
    ),
    named=r"TimeoutError|still running|job_status",
    turns=(1, 2, 3),
    tampered=Change(
        "another value returned", (Edit(PATH, "return response.content[0].text", 'return "WRONG"'),)
    ),
)
