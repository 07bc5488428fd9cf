"""Proof by failure: real Spark, a real service, a real ledger, and something that kills them at random.

`python -m fuzz.chaos` runs it, `docs/chaos.md` says what it shows. Everything here is for the harness's one
thread, unless a file's first lines say otherwise.
"""
