"""The recording proxy: records programs that cannot be recorded from inside, between them and the provider.

`client_variables` lists the environment variables that direct clients to the proxy. `forwarding` is the ASGI
application, `recording_proxy` runs it in a thread, `client_sessions` assigns requests to sessions, and `command` runs
the recorded program.
"""
