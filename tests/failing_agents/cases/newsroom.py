"""An agent on the raw SDK, async and streamed, whose final answer cannot be parsed."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

FENCED = '```json\n{"headline": "Trams in trouble", "items": ["line 4", "budget"]}\n```'
PATH = "src/digest.py"


def answer(request: Request) -> Reply:
    if "plain JSON" in request.last_text:
        return [text(FENCED.strip("`json\n"))]
    if request.result("search_archive") is None:
        return [call("search_archive", query="tram")]
    return [text(FENCED)]


CASE = Case(
    name="newsroom",
    shape="raw SDK, async, streamed",
    tools="plain",
    failure="exception while the final answer is parsed",
    run=(PATH,),
    answer=answer,
    fails=r"JSONDecodeError",
    succeeds=r"DIGEST Trams in trouble 2",
    fixes=(
        Change(
            "the fence is removed",
            (
                Edit(
                    PATH,
                    "data = json.loads(text)",
                    "data = json.loads(text.strip().removeprefix('```json').removesuffix('```'))",
                ),
            ),
        ),
        Change(
            "the model is asked for plain JSON",
            (
                Edit(
                    PATH,
                    "                digest = parse(msg.content[0].text)\n",
                    "                try:\n"
                    "                    digest = parse(msg.content[0].text)\n"
                    "                except json.JSONDecodeError:\n"
                    "                    again = 'Answer with plain JSON, no fence.'\n"
                    "                    messages.append({'role': 'user', 'content': again})\n"
                    "                    continue\n",
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "the exception is caught, printed and raised again",
            (
                Edit(
                    PATH,
                    "    data = json.loads(text)\n",
                    "    try:\n"
                    "        data = json.loads(text)\n"
                    "    except ValueError as e:\n"
                    "        print('bad answer', e)\n"
                    "        raise\n",
                ),
            ),
        ),
    ),
    named=r"JSONDecodeError|Expecting value",
    turns=(2,),
    tampered=Change(
        "a changed return value",
        (Edit(PATH, "return digest\n", "return Digest('WRONG', [])\n"),),
    ),
)
