"""python -m sqlbot.cli QUESTION"""
import os
import random
import sqlite3
import sys
import time

from anthropic import Anthropic

import agentobs

SCHEMA = """
create table sales (shop text, amount integer, sold_on text);
insert into sales values ('Bonn', 120, '2026-10-01'), ('Bonn', 80, '2026-10-02'), ('Kiel', 50, '2026-10-02');
"""


@agentobs.record_tool
def query(sql: str) -> str:
    db = sqlite3.connect(":memory:")
    try:
        rows = db.execute(sql).fetchall()
    except sqlite3.Error as error:
        return f"ERROR {error}"
    finally:
        db.close()
    return "\n".join(" | ".join(map(str, row)) for row in rows)


def converse(client, messages, cap=5):
    tools = [{"name": "query", "description": "SQL on the sales database",
              "input_schema": {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}}]
    errors = 0
    while errors < cap:
        time.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
        out = client.messages.create(model="claude-sonnet-5", max_tokens=900, tools=tools, messages=messages)
        messages.append({"role": "assistant", "content": [b.to_dict() for b in out.content]})
        if out.stop_reason != "tool_use":
            return out.content[-1].text
        for b in out.content:
            if b.type == "tool_use":
                rows = query(b.input["sql"])
                errors += rows.startswith("ERROR")
                messages.append({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": b.id, "content": rows, "is_error": rows.startswith("ERROR")}]})
    agentobs.fail(f"gave up after {errors} failed queries")
    return None


def answer(question: str):
    with agentobs.session("sqlbot"):
        client = agentobs.record(Anthropic())
        return converse(client, [{"role": "user", "content": question}])


if __name__ == "__main__":
    print("ANSWER", answer(sys.argv[1]))
