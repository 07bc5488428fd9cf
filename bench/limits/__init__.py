"""Rates of jobs at services that refuse calls, or are full."""
