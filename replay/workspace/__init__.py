"""The files with which a replay starts, and the comparison of the files at its end."""
