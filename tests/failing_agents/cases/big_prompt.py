"""The provider rejects all requests until the agent's own retries are used up."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import ErrorReply, Reply, Request, text

PATH = "summarize.py"


def answer(request: Request) -> Reply:
    if request.body["max_tokens"] > 8192:
        return ErrorReply(400, "invalid_request_error", "max_tokens: 20000 > 8192")
    if request.prompt.startswith("Which pumps"):
        return [text("Pumps 0 and 6.")]
    return [text("Pumps 0 and 6 need a visit.")]


CASE = Case(
    name="big_prompt",
    shape="raw SDK, sync, own retries",
    tools="none",
    failure="retry storm of rejected requests, raises",
    run=(PATH,),
    answer=answer,
    fails=r"Overwhelmed: 4 tries, last status 400",
    succeeds=r"Pumps 0 and 6 need a visit",
    fixes=(
        Change(
            "a limit that the model allows", (Edit(PATH, "max_tokens=20000", "max_tokens=8000"),)
        ),
        Change(
            "rejected requests are repeated with a smaller limit",
            (
                Edit(PATH, "    tries = 0\n", "    tries = 0\n    limit = 20000\n"),
                Edit(PATH, "max_tokens=20000", "max_tokens=limit"),
                Edit(
                    PATH,
                    "            tries += 1\n",
                    "            tries += 1\n            limit //= 10\n",
                ),
            ),
        ),
    ),
    wrong=(
        Change("longer pauses", (Edit(PATH, "time.sleep(0.2 * tries", "time.sleep(0.4 * tries"),)),
    ),
    named=r"Overwhelmed|400|max_tokens",
    turns=(1,),
    tampered=Change(
        "a changed return value", (Edit(PATH, "    return second\n", '    return "WRONG"\n'),)
    ),
)
