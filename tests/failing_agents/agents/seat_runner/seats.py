import asyncio, os, random
from typing import Annotated

import agentobs
from anthropic import AsyncAnthropic, beta_async_tool


class NoSeat(Exception):
    ...


FREE = {"ICE 602": {"1": [11, 12], "2": [61]}, "ICE 604": {"2": [4, 5, 6]}}


@beta_async_tool
@agentobs.record_tool
async def free_seats(train: str, first_class: bool) -> str:
    """Return the free seats of a train.

    Args:
        train: such as ICE 602
        first_class: whether first class
    """
    await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    coach = "1" if first_class else "2"
    return ", ".join(FREE[train][coach])


class Conductor:
    greeting = "You are a conductor."

    async def run(self, wish, on_text=lambda piece: None):
        client = agentobs.record(AsyncAnthropic())
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-5", max_tokens=400, system=self.greeting,
            tools=[free_seats], messages=[{"role": "user", "content": wish}], stream=True,
        )
        async for stream in runner:
            async for event in stream:
                if event.type == "text":
                    on_text(event.text)
            last = await stream.get_final_message()
        return last.content[-1].text


@agentobs.session("seats")
async def book(wish):
    pieces = []
    text = await Conductor().run(wish, pieces.append)
    if "no seat" in text.lower():
        raise NoSeat(f"{len(pieces)} pieces, but no seat")
    return {"text": text, "pieces": len(pieces)}


if __name__ == "__main__":
    print(asyncio.run(book("A quiet seat in ICE 602, second class")))
