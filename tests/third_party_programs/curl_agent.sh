#!/bin/sh
# An agent of curl and jq: sends a task, reads the files that the model asks for, and prints the last response.
set -eu
tools='[{"name": "read_file", "description": "Read a file.",
  "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}]'
messages=$(jq -nc --arg task "$1" '[{role: "user", content: $task}]')
while :; do
  response=$(jq -nc --argjson messages "$messages" --argjson tools "$tools" \
      '{model: "claude-sonnet-5", max_tokens: 100, tools: $tools, messages: $messages}' |
    curl --silent --show-error --fail --compressed "$ANTHROPIC_BASE_URL/v1/messages" --data-binary @- \
      --header "x-api-key: $ANTHROPIC_API_KEY" --header "anthropic-version: 2023-06-01" \
      --header "content-type: application/json")
  if [ "$(printf "%s" "$response" | jq -r .stop_reason)" != tool_use ]; then
    printf "%s" "$response" | jq -r '.content[0].text'
    exit
  fi
  results='[]'
  for call in $(printf "%s" "$response" | jq -r '.content[] | select(.type == "tool_use") | .id + ":" + .input.path'); do
    results=$(printf "%s" "$results" | jq -c --arg id "${call%%:*}" --rawfile text "${call#*:}" \
      '. + [{type: "tool_result", tool_use_id: $id, content: $text}]')
  done
  messages=$(printf "%s" "$messages" | jq -c --argjson response "$response" --argjson results "$results" \
    '. + [{role: "assistant", content: $response.content}, {role: "user", content: $results}]')
done
