"""A class with methods; the model repeats an invalid call until the agent's own limit raises an exception."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "helpdesk.py"


def answer(request: Request) -> Reply:
    booked = request.result("book")
    if booked and not booked.is_error:
        return [text(f"A technician comes: {booked.text}.")]
    day = "2026-12-03" if booked and "YYYY-MM-DD" in booked.text else "3 December"
    return [call("book", day=day, hour=9)]


CASE = Case(
    name="support_class",
    shape="a class with methods, raw SDK",
    tools="plain",
    failure="endless loop until a limit raises",
    run=(PATH,),
    answer=answer,
    fails=r"GaveUp",
    succeeds=r"A technician comes: booked|handed over to a person",
    fixes=(
        Change(
            "the tool accepts days without a year",
            (
                Edit(
                    PATH,
                    r'if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):',
                    r'if not re.fullmatch(r"\d{4}-\d\d-\d\d|\d+ \w+", day):',
                ),
            ),
            'assert not step.tool("book").is_error',
        ),
        Change(
            "the error names the expected format",
            (
                Edit(
                    PATH,
                    'return "invalid day", False',
                    'return "invalid day, use YYYY-MM-DD", False',
                ),
            ),
            needs_provider=True,
        ),
        Change(
            "the agent stops after two failures",
            (
                Edit(
                    PATH,
                    '            messages.append({"role": "user", "content": results})\n',
                    '            if turn >= 1 and all(r["is_error"] for r in results):\n'
                    '                return "handed over to a person"\n'
                    '            messages.append({"role": "user", "content": results})\n',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "a changed log line",
            (Edit(PATH, 'log.info("turn %s: %s", turn, text)', 'log.warning("%s", text)'),),
        ),
    ),
    named=r"GaveUp|invalid day|no appointment|\bbook\b",
    turns=(1, 2, 3, 4, 5, 6),
    tampered=Change(
        "a changed return value", (Edit(PATH, "return reply.content[0].text", 'return "WRONG"'),)
    ),
)
