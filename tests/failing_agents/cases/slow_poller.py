"""An agent that sleeps 20 seconds between turns, and polls until its own limit raises an exception."""

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
    failure="endless loop until a limit raises",
    run=(PATH,),
    answer=answer,
    fails=r"TimeoutError: render-8 is still running after 3 polls",
    succeeds=r"render-8 is finished\.",
    fixes=(
        Change(
            "text after DONE is ignored",
            (Edit(PATH, 'if raw == "DONE":', 'if raw.startswith("DONE"):'),),
        ),
        Change(
            "the comment is removed",
            (Edit(PATH, "raw = JOBS[job]\n", 'raw = JOBS[job].partition(" (")[0]\n'),),
        ),
    ),
    wrong=(
        Change(
            "a longer polling interval", (Edit(PATH, "POLL_SECONDS = 20", "POLL_SECONDS = 25"),)
        ),
        Change(
            "the agent prints before it raises",
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
        "a changed return value", (Edit(PATH, "return response.content[0].text", 'return "WRONG"'),)
    ),
)
