"""The task model beside the state before it: `python -m bench.task --beside REF`."""
