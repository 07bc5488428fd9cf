"""The cost of the sources beside code written by hand: `python -m bench.sources`."""
