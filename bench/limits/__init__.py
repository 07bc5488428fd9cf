"""How much of a service's limits jobs use, and how much of what they ask is refused; in virtual time."""
