"""The two demonstration jobs; `python -m bench.demo --help` lists them. No part of the package."""
