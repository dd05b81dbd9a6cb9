# -*- coding: utf-8 -*-
import os, random, time
import agentobs
from anthropic import Anthropic

HOURS = {"Ada": [8, 8, 7.5, 8, 6], "Bo": [8, 4, 0, 8, 8]}
WAGE = {"Ada": 40, "Bo": 30}
SPENT = {"limit": 2600}

@agentobs.record_tool
def hours(name):
    time.sleep(random.random() * float(os.environ.get('AGENT_JITTER', '0')))
    worked = HOURS[name]
    return sum(worked[1:])

@agentobs.record_tool
def wage(name):
    return WAGE[name]

@agentobs.record_tool(mutating=True)
def pay(name, amount):
    return f'paid {amount} to {name}'

TOOLS = {'hours': (hours, ['name']), 'wage': (wage, ['name']), 'pay': (pay, ['name', 'amount'])}

def schema(args):
    return {'type': 'object', 'properties': {a: {'type': 'number' if a == 'amount' else 'string'} for a in args}, 'required': args}

@agentobs.session('payroll')
def payroll(name):
    client = agentobs.record(Anthropic())
    msgs = [{'role': 'user', 'content': f'Pay {name} for this week.'}]
    defs = [{'name': n, 'description': n, 'input_schema': schema(args)} for n, (_, args) in TOOLS.items()]
    paid = None
    while True:
        r = client.messages.create(model='claude-sonnet-5', max_tokens=512, tools=defs, messages=msgs)
        msgs.append({'role': 'assistant', 'content': r.content})
        if r.stop_reason == 'end_turn':
            break
        out = []
        for b in r.content:
            if b.type != 'tool_use':
                continue
            fn, _ = TOOLS[b.name]
            value = fn(**b.input)
            if b.name == 'pay':
                paid = b.input['amount']
            out.append({'type': 'tool_result', 'tool_use_id': b.id, 'content': str(value)})
        msgs.append({'role': 'user', 'content': out})
    # the bank reports the correct amount later
    due = sum(HOURS[name]) * WAGE[name]
    if paid != due:
        agentobs.fail(f'{name} got {paid} and not {due}')
    return r.content[0].text

if __name__ == '__main__':
    print(payroll('Ada'))
