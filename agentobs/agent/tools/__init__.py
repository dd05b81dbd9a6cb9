"""Tool and agent definitions, input schemas, results and structured output."""
