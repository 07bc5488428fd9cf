"""A job killed half way and run again: the texts that are paid for twice. `python -m bench.killed`."""
