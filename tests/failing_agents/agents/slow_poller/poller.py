import os
import random
import time

import agentobs
from anthropic import Anthropic

POLL_SECONDS = 20
JOBS = {"render-8": "DONE (4 frames)"}


def job_status(job):
    raw = JOBS[job]
    if raw == "DONE":
        return "finished"
    return "still running"


@agentobs.session("slow-poller")
def wait_for(job):
    client = agentobs.record(Anthropic())
    tools = [{"name": "job_status", "description": "Status of a job",
              "input_schema": {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}}]
    messages = [{"role": "user", "content": f"Tell me when {job} is finished."}]
    polls = 0
    while True:
        response = client.messages.create(model="claude-sonnet-5", max_tokens=200, tools=tools, messages=messages)
        messages.append({"role": "assistant", "content": response.content})
        if response.stop_reason == "end_turn":
            return response.content[0].text
        block = next(b for b in response.content if b.type == "tool_use")
        status = job_status(**block.input)
        polls += 1
        if status == "still running":
            if polls == 3:
                raise TimeoutError(f"{job} is still running after {polls} polls")
            time.sleep(POLL_SECONDS + random.random() * float(os.environ.get("AGENT_JITTER", "0")))
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block.id, "content": status}]})


if __name__ == "__main__":
    print(wait_for("render-8"))
