"""Recording: the journal, the recorder that writes it, the wire that feeds it, and serving it again."""
