"""Bounds on calls besides their number in flight: rates, budgets, found capacities; per task or shared."""
