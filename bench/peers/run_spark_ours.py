"""Pillarbox in Spark, with workers of its own: what it does to them is of no use to code by hand."""

from __future__ import annotations

from bench.peers.run_spark import main

if __name__ == "__main__":
    main()
