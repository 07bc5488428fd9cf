"""What the sources cost beside what one would write by hand: `python -m bench.sources`."""
