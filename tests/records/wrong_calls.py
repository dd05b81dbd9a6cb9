"""Calls of `agentobs.event` that a type checker refuses: each would put a text among the facts.

Never imported. Each call carries the error that mypy reports; `test_own_events.py` runs both.
"""

from enum import Enum, IntEnum, StrEnum

import agentobs


class Mood(StrEnum):
    """An enum whose members are texts."""

    GOOD = "good"


class Color(str, Enum):  # noqa: UP042
    """The same, in the older form."""

    RED = "red"


class Size(IntEnum):
    """An enum whose members are numbers."""

    LARGE = 3


said = "what somebody said"
found = 3

agentobs.event("app.text", said="plain")  # E: arg-type
agentobs.event("app.text", said=said)  # E: arg-type
agentobs.event("app.text", said=f"{found} found")  # E: arg-type
agentobs.event("app.text", said=b"bytes")  # E: arg-type
agentobs.event("app.text", said={"a": 1})  # E: arg-type
agentobs.event("app.text", said=["a"])  # E: arg-type
agentobs.event("app.text", said=("a",))  # E: arg-type
agentobs.event("app.text", said={"a"})  # E: arg-type
agentobs.event("app.text", said=Mood.GOOD)  # E: arg-type
agentobs.event("app.text", said=Color.RED)  # E: arg-type
agentobs.event("app.text", said=object())  # E: arg-type
agentobs.event("app.text", said=str(agentobs.Label("a")))  # E: arg-type
agentobs.event("app.text", said=agentobs.Label("a") + said)  # E: arg-type
agentobs.event("app.text", said=agentobs.Label("a").upper())  # E: arg-type
agentobs.event("app.text", found=found, said=ValueError(said))  # E: arg-type
agentobs.event("app.text", said=str)  # E: arg-type
agentobs.event("app.text", said=len)  # E: arg-type
agentobs.event("app.text", **{"said": said})  # E: arg-type

agentobs.event("app.right", found=found, share=0.5, is_good=True, nothing=None, size=Size.LARGE)
agentobs.event("app.right", shop=agentobs.Label("berlin-2"))
agentobs.event("app.right", why=agentobs.Label.reviewed("it was late", reason="a constant"))
