import asyncio, json, os, random
from dataclasses import dataclass
import agentobs
from anthropic import AsyncAnthropic

MODEL = 'claude-haiku-4-5'

@dataclass
class Digest:
    headline: str
    items: list

SEARCH = {
    'name': 'search_archive',
    'description': 'Full text search in the archive',
    'input_schema': {'type': 'object', 'properties': {'query': {'type': 'string'}}, 'required': ['query']},
}

ARCHIVE = [
    'Tram line 4 closed until March',
    'Council votes on tram budget',
    'Harbour festival moved to June',
]

async def search_archive(query: str) -> str:
    await asyncio.sleep(random.random() * float(os.getenv('AGENT_JITTER', 0)))
    return '\n'.join(line for line in ARCHIVE if query.lower() in line.lower())

def parse(text: str) -> Digest:
    data = json.loads(text)
    return Digest(data['headline'], data['items'])

async def say(client, messages):
    async with client.messages.stream(model=MODEL, max_tokens=2000, tools=[SEARCH], messages=messages,
                                      system='Answer with a JSON object: headline, items.') as stream:
        async for piece in stream.text_stream:
            print(piece, end='', flush=True)
        return await stream.get_final_message()

@agentobs.session('newsroom')
async def write_digest(topic: str):
    async with AsyncAnthropic() as client:
        agentobs.record(client)
        messages = [{'role': 'user', 'content': f'Write the digest about: {topic}'}]
        for _ in range(8):
            msg = await say(client, messages)
            messages.append({'role': 'assistant', 'content': [b.model_dump(exclude_none=True, include={'type', 'text', 'id', 'name', 'input'}) for b in msg.content]})
            if msg.stop_reason != 'tool_use':
                digest = parse(msg.content[0].text)
                return digest
            results = []
            for b in msg.content:
                if b.type == 'tool_use':
                    results.append({'type': 'tool_result', 'tool_use_id': b.id, 'content': await search_archive(**b.input)})
            messages.append({'role': 'user', 'content': results})

if __name__ == '__main__':
    d = asyncio.run(write_digest('tram'))
    print()
    print('DIGEST', d.headline, len(d.items))
