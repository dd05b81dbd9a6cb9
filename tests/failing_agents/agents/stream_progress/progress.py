import asyncio
import os
import random

from anthropic import AsyncAnthropic

import agentobs

SECTIONS = ("intro", "method", "results")


def words_of(text: str) -> int:
    """Return the number at the end of a response, such as 123 for WORDS=123."""
    return int(text.rpartition("WORDS=")[2])


async def write_report(topic: str):
    """Yield progress while the report is being written."""
    with agentobs.session("stream-progress"):
        client = agentobs.record(AsyncAnthropic(max_retries=1))
        total = 0
        for number, section in enumerate(SECTIONS, 1):
            yield f"{number}/{len(SECTIONS)} {section}"
            await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
            async with client.messages.stream(
                model="claude-sonnet-5",
                max_tokens=4000,
                messages=[{
                    "role": "user",
                    "content": f"Write the {section} of a report on {topic}. So far: {total} words.",
                }],
            ) as stream:
                async for event in stream:
                    if event.type == "text":
                        yield event.text
                final = await stream.get_final_text()
            total += words_of(final)
        yield f"TOTAL {total}"


async def main():
    async for step in write_report("bees"):
        print(step)


if __name__ == "__main__":
    asyncio.run(main())
