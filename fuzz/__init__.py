"""Long checks with new random choices at each run: `make fuzz`, `python -m fuzz --minutes 5 [NAME ...]`."""
