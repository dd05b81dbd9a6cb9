"""The Messages API of Anthropic, also on Bedrock and Vertex."""
