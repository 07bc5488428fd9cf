"""Benchmarks of limits in virtual time: the used part of what a service allows, and the refused calls."""
