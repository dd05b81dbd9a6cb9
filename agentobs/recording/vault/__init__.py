"""The vault: the content of the segments, encrypted on request."""
