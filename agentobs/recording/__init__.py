"""Recording: sessions, the HTTP transports that record exchanges, the recorder, the journal and the vault."""
