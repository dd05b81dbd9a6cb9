// An agent of the TypeScript SDK's tool runner.
import { readFile } from "node:fs/promises";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";

const readNotes = betaZodTool({
  name: "read_file",
  description: "Read a file.",
  inputSchema: z.object({ path: z.string() }),
  run: ({ path }) => readFile(path, "utf8"),
});
const client = new Anthropic();
const final = await client.beta.messages.toolRunner({
  model: "claude-sonnet-5",
  max_tokens: 100,
  messages: [{ role: "user", content: process.argv[2] }],
  tools: [readNotes],
  stream: false,
});
console.log(final.content[0].text);
