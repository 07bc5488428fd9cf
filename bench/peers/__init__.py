"""The peers: other ways to make asynchronous calls, each in an environment of its own. `make bench-peers`."""
