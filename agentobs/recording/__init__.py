"""Recording: the journal, the recorder that writes it, the HTTP transports that feed it, and the server that replays
it.
"""
