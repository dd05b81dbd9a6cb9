import os
import random
import time

import anthropic

import agentobs

client = agentobs.record(anthropic.Anthropic(max_retries=0))

LOG = [f"line {n}: pump {n % 7} reports {'OK' if n % 13 else 'PRESSURE LOW'}" for n in range(400)]


class Overwhelmed(RuntimeError):
    """The provider rejected all attempts."""


def ask_model(text):
    tries = 0
    while True:
        try:
            return client.messages.create(
                model="claude-sonnet-5",
                max_tokens=20000,
                messages=[{"role": "user", "content": text}],
            )
        except anthropic.APIStatusError as e:
            tries += 1
            print("try", tries, e.status_code)
            if tries >= 4:
                raise Overwhelmed(f"{tries} tries, last status {e.status_code}") from e
            time.sleep(0.2 * tries + random.random() * float(os.environ.get("AGENT_JITTER", "0")))


@agentobs.session("summarize")
def summarize(limit):
    chunk = "\n".join(LOG[:limit])
    first = ask_model(f"Which pumps are in trouble?\n{chunk}").content[0].text
    second = ask_model(f"Write one sentence for the manager: {first}").content[0].text
    return second


if __name__ == "__main__":
    print(summarize(100))
