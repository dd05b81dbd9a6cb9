"""Two models race, and the slower one is canceled; the answer of the faster one cannot be converted."""

import time

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, text

PATH = "race.py"


def answer(request: Request) -> Reply:
    if "opus" in request.body["model"]:
        # The good model is slow; its exact delay does not matter.
        time.sleep(0.5)
        return [text("600 g")]
    return [text("1.2 kg" if "bread" in request.prompt else "12 oz")]


CASE = Case(
    name="race_models",
    shape="asyncio.wait(FIRST_COMPLETED), the loser cancelled",
    tools="none",
    failure="exception while an answer is converted",
    run=(PATH,),
    answer=answer,
    fails=r"KeyError: 'oz'",
    succeeds=r"LIST \{'bread': 1200.0, 'waffles': (340|0)",
    fixes=(
        Change(
            "the missing unit is added", (Edit(PATH, '"kg": 1000}', '"kg": 1000, "oz": 28.35}'),)
        ),
        Change("unknown units count as zero", (Edit(PATH, "UNITS[unit]", "UNITS.get(unit, 0)"),)),
    ),
    wrong=(
        Change(
            "the factors are swapped",
            (Edit(PATH, "float(number) * UNITS[unit]", "UNITS[unit] * float(number)"),),
        ),
    ),
    named=r"KeyError",
    turns=(2,),
    tampered=Change(
        "a changed return value", (Edit(PATH, "        return weights\n", "        return {}\n"),)
    ),
)
