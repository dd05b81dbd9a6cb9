// An agent whose base URL is in its source, and which sends each request with another function of Node.js.
import { readFileSync } from "node:fs";
import http from "node:https";

const URL_OF_MESSAGES = "https://api.anthropic.com/v1/messages";
const headers = {
  "content-type": "application/json",
  "anthropic-version": "2023-06-01",
  "x-api-key": "sk-ant-a-made-up-key-0123456789",
};
const tools = [
  { name: "read_file", description: "Read.", input_schema: { type: "object", properties: { path: { type: "string" } } } },
];

async function withFetch(body) {
  return (await fetch(URL_OF_MESSAGES, { method: "POST", headers, body })).json();
}

async function withRequestObject(body) {
  return (await fetch(new Request(URL_OF_MESSAGES, { method: "POST", headers, body }))).json();
}

function withHttps(body) {
  return new Promise((resolve, reject) => {
    const options = { hostname: "api.anthropic.com", path: "/v1/messages", method: "POST", headers };
    const request = http.request(options, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () => resolve(JSON.parse(Buffer.concat(parts).toString())));
    });
    request.on("error", reject);
    request.end(body);
  });
}

const ways = [withFetch, withHttps, withRequestObject];
const messages = [{ role: "user", content: process.argv[2] }];
for (let turn = 0; ; turn++) {
  const body = JSON.stringify({ model: "claude-sonnet-5", max_tokens: 100, tools, messages });
  const response = await ways[turn % ways.length](body);
  const calls = response.content.filter((block) => block.type === "tool_use");
  if (!calls.length) {
    console.log(response.content[0].text);
    break;
  }
  const results = calls.map((call) => ({
    type: "tool_result",
    tool_use_id: call.id,
    content: readFileSync(call.input.path, "utf8"),
  }));
  messages.push({ role: "assistant", content: response.content }, { role: "user", content: results });
}
