"""Match requests of programs that are not Python agents with a recording, by the conversation that they carry."""
