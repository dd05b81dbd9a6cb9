"""An async generator that yields progress; one answer of the model cannot be parsed."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, text

PATH = "progress.py"


def answer(request: Request) -> Reply:
    if "the results of" in request.prompt:
        return [text("Bees like lavender. WORDS=about 3")]
    return [text("There are many bees here. WORDS=5")]


CASE = Case(
    name="stream_progress",
    shape="an async generator, raw SDK, streamed",
    tools="none",
    failure="exception while an answer is parsed",
    run=(PATH,),
    answer=answer,
    fails=r"ValueError: invalid literal",
    succeeds=r"TOTAL 13",
    fixes=(
        Change(
            "the last word is the number",
            (
                Edit(
                    PATH,
                    'int(text.rpartition("WORDS=")[2])',
                    'int(text.rpartition("WORDS=")[2].split()[-1])',
                ),
            ),
        ),
        Change(
            "words are counted without the model",
            (
                Edit(
                    PATH,
                    '    return int(text.rpartition("WORDS=")[2])\n',
                    '    said = text.rpartition("WORDS=")[2]\n'
                    "    return int(said) if said.isdigit() else len(text.split()) - 2\n",
                ),
            ),
        ),
    ),
    wrong=(
        Change(
            "the summands are swapped",
            (Edit(PATH, "total += words_of(final)", "total = words_of(final) + total"),),
        ),
    ),
    named=r"ValueError|invalid literal",
    turns=(3,),
)
