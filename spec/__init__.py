"""The specification in TLA+ and the programs that check it; `README.md` explains it, `run.py` runs it."""
