"""Benchmarks of limits: services that take part of the calls, or take them slowly."""
