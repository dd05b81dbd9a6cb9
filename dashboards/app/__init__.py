"""The live application: pages over loopback HTTP about a home that agents may be writing to."""
