"""Benchmarks of the limits on calls, and of the cost of slow calls."""
