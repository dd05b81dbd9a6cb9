"""The Converse API of Bedrock, which has one shape for the models of all vendors."""
