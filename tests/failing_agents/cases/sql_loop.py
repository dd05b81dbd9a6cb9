"""The model repeats an invalid query until the agent's own limit reports a failure."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text

PATH = "src/sqlbot/cli.py"


def answer(request: Request) -> Reply:
    rows = request.result("query")
    if rows and not rows.is_error and "Bonn" in rows.text:
        return [text(f"Bonn sold {rows.text.split('Bonn | ')[1].split()[0]}.")]
    return [call("query", sql="select shop, sum(amount) from sales group by shop")]


CASE = Case(
    name="sql_loop",
    shape="raw SDK, sync, src layout, with session() inside",
    tools="record_tool",
    failure="endless loop until a limit calls fail(sentence)",
    run=("-m", "sqlbot.cli", "How much did Bonn sell?"),
    answer=answer,
    fails=r"ANSWER None",
    succeeds=r"ANSWER Bonn sold 200|ANSWER the database",
    fixes=(
        Change(
            "the tables are created",
            (
                Edit(
                    PATH,
                    '    db = sqlite3.connect(":memory:")\n',
                    '    db = sqlite3.connect(":memory:")\n    db.executescript(SCHEMA)\n',
                ),
            ),
            'assert not step.tool("query").text.startswith("ERROR")',
        ),
        Change(
            "the first error ends the loop",
            (
                Edit(
                    PATH,
                    '                errors += rows.startswith("ERROR")\n',
                    '                if "no such table" in rows:\n'
                    '                    return "the database is empty"\n'
                    '                errors += rows.startswith("ERROR")\n',
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "an additional log line",
            (
                Edit(
                    PATH,
                    '                rows = query(b.input["sql"])\n',
                    '                rows = query(b.input["sql"])\n                print(rows)\n',
                ),
            ),
        ),
    ),
    named=r"no such table|\bquery\b|gave up",
    turns=(1, 2, 3, 4, 5),
    source_root="src",
)
