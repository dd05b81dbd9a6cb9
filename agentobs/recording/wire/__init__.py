"""HTTP: transports that record exchanges, and a local server that answers requests from a recording."""
