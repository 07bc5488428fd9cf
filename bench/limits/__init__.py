"""How well jobs do at services that refuse calls, or are full."""
