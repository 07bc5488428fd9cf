"""The kernel beside the best of each language: `make bench-kernel`."""
