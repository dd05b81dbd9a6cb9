import functools, json, os, random, time
import anthropic, agentobs

client = agentobs.record(anthropic.Anthropic())
HISTORY = []
STATS = {"calls": 0}


@functools.lru_cache(maxsize=None)
def catalog():
    # cents
    return {"oak desk": 48900, "lamp": 3900, "chair": 12950}


@functools.lru_cache(maxsize=None)
def price(article):
    time.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    cents = catalog()[article]
    return cents / 10


def tool(block):
    STATS["calls"] += 1
    return json.dumps({"call": STATS["calls"], "article": block.input["article"], "eur": price(block.input["article"])})


TOOLS = [{"name": "price", "description": "price in EUR",
          "input_schema": {"type": "object", "properties": {"article": {"type": "string"}}}}]


@agentobs.session("quotes")
def chat(text):
    HISTORY.append({"role": "user", "content": text})
    while True:
        reply = client.messages.create(model="claude-sonnet-5", max_tokens=500, tools=TOOLS, messages=HISTORY)
        HISTORY.append({"role": "assistant", "content": reply.content})
        uses = [b for b in reply.content if b.type == "tool_use"]
        if not uses:
            break
        HISTORY.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": b.id, "content": tool(b)} for b in uses]})
    offer = reply.content[0].text
    quoted = float(offer.rsplit(" ", 2)[1])
    if quoted > 1000:
        agentobs.fail("quote-above-limit")
    return offer


if __name__ == "__main__":
    print(chat("What would an oak desk, a lamp and a chair cost?"))
