"""The clients beside their rivals, against a server that costs next to nothing. `make bench-clients`."""
