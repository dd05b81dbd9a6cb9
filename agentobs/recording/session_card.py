"""A session as HTML, which notebooks display: its name, its ID, its state and its cost, without content."""

from __future__ import annotations

from html import escape

from agentobs.ledger import Spent
from agentobs.records.display import certain_money, printable


def session_card(name: str, session_id: str, state: str, spent: Spent | None) -> str:
    """Return the HTML of a session.

    Args:
        name: the name that the program gave it.
        session_id: its ID; empty if it has not started.
        state: its state in words.
        spent: its cost so far; None if it is not recorded.
    """
    facts = {"session": session_id or "not started", "state": state, "cost": _cost(spent)}
    if session_id:
        facts["figures"] = f'dashboards.waterfall("{session_id}")'
        facts["details"] = f"agentobs show {session_id}"
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(label)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for label, value in facts.items()
    )
    return f"<table><caption>{escape(printable(name))}</caption>{rows}</table>"


def _cost(spent: Spent | None) -> str:
    if spent is None:
        return "not recorded"
    if spent.usd is None:
        return "unknown: no price is known for its models"
    return f"{certain_money(spent.usd, spent.status)} for {spent.calls:,} call{'s' * (spent.calls != 1)}"
