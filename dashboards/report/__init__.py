"""Reports: one HTML file each."""
