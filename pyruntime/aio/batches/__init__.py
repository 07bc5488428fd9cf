"""Calls of many rows at once, `Batch`: which rows make a batch, its call, and what follows where it fails."""
