"""Calls of `agentobs.event` that a type checker rejects, because each of them would write a text to the facts.

Never imported. The comment of each call is the error that mypy reports; `test_custom_events.py` checks the calls with
mypy and at run time.
"""

from enum import Enum, IntEnum, StrEnum

import agentobs


class Mood(StrEnum):
    """An enum whose members are texts."""

    GOOD = "good"


class Color(str, Enum):  # noqa: UP042
    """An enum whose members are texts, declared in the older form."""

    RED = "red"


class Size(IntEnum):
    """An enum whose members are numbers."""

    LARGE = 3


user_text = "a text of a user"
found = 3

agentobs.event("app.text", user_text="plain")  # E: arg-type
agentobs.event("app.text", user_text=user_text)  # E: arg-type
agentobs.event("app.text", user_text=f"{found} found")  # E: arg-type
agentobs.event("app.text", user_text=b"bytes")  # E: arg-type
agentobs.event("app.text", user_text={"a": 1})  # E: arg-type
agentobs.event("app.text", user_text=["a"])  # E: arg-type
agentobs.event("app.text", user_text=("a",))  # E: arg-type
agentobs.event("app.text", user_text={"a"})  # E: arg-type
agentobs.event("app.text", user_text=Mood.GOOD)  # E: arg-type
agentobs.event("app.text", user_text=Color.RED)  # E: arg-type
agentobs.event("app.text", user_text=object())  # E: arg-type
agentobs.event("app.text", user_text=str(agentobs.Label("a")))  # E: arg-type
agentobs.event("app.text", user_text=agentobs.Label("a") + user_text)  # E: arg-type
agentobs.event("app.text", user_text=agentobs.Label("a").upper())  # E: arg-type
agentobs.event("app.text", found=found, user_text=ValueError(user_text))  # E: arg-type
agentobs.event("app.text", user_text=str)  # E: arg-type
agentobs.event("app.text", user_text=len)  # E: arg-type
agentobs.event("app.text", **{"user_text": user_text})  # E: arg-type

agentobs.event("app.right", found=found, share=0.5, is_good=True, nothing=None, size=Size.LARGE)
agentobs.event("app.right", shop=agentobs.Label("berlin-2"))
agentobs.event("app.right", why=agentobs.Label.reviewed("it was late", reason="a constant"))
