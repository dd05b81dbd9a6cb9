"""What the pytest plug-in imports on demand; the entry point is `replay.plugin`."""
