"""Ledgers in object stores: a commit is an object; one job at a time holds a run, as there are no locks."""
