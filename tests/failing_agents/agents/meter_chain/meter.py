"""LangChain agent that reads electricity meters."""
import os
import random
import time

import agentobs
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool

READINGS = {"M-3": ["10400", "10955"], "M-9": ["887.5", "1,012.5"]}


@tool
@agentobs.record_tool
def consumption(meter: str) -> str:
    """Consumption of a meter in kWh since the last reading."""
    time.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    before, now = (float(r) for r in READINGS[meter])
    return f"{now - before:.1f} kWh"


@agentobs.session("meter-chain")
def answer(question: str) -> str:
    llm = agentobs.record(ChatAnthropic(model="claude-sonnet-5", max_tokens=500))
    agent = create_agent(llm, [consumption], system_prompt="You answer questions about meters.")
    state = agent.invoke({"messages": [{"role": "user", "content": question}]})
    return str(state["messages"][-1].text)


if __name__ == "__main__":
    print(answer("How much did M-3 and M-9 use?"))
