"""Benchmarks: throughput beside hand-written alternatives, the kernel's primitives, and a report."""
