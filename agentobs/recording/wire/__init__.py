"""HTTP: transports that copy exchanges, and a local server that answers from a recording."""
