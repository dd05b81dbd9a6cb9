// An agent of the Claude Agent SDK for TypeScript, which starts its own copy of Claude Code.
import { query } from "@anthropic-ai/claude-agent-sdk";

const options = { permissionMode: "bypassPermissions", allowDangerouslySkipPermissions: true, model: "claude-sonnet-5" };
for await (const message of query({ prompt: process.argv[2], options })) {
  if (message.type === "result") console.log(message.result);
}
