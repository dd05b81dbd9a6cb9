"""A storm of requests that the provider refuses, until the agent's own retries end."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Refusal, Reply, Request, text

PATH = "summarize.py"


def answer(request: Request) -> Reply:
    if request.body["max_tokens"] > 8192:
        return Refusal(400, "invalid_request_error", "max_tokens: 20000 > 8192")
    if request.prompt.startswith("Which pumps"):
        return [text("Pumps 0 and 6.")]
    return [text("Pumps 0 and 6 need a visit.")]


CASE = Case(
    name="big_prompt",
    shape="raw SDK, sync, retries of its own",
    tools="none",
    failure="retry storm of refused requests, raises",
    run=(PATH,),
    answer=answer,
    fails=r"Overwhelmed: 4 tries, last status 400",
    succeeds=r"Pumps 0 and 6 need a visit",
    fixes=(
        Change("a limit that the model has", (Edit(PATH, "max_tokens=20000", "max_tokens=8000"),)),
        Change(
            "refused requests are not repeated, but made smaller",
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
        "another value returned", (Edit(PATH, "    return second\n", '    return "WRONG"\n'),)
    ),
)
