"""Equal rows share one call, `Dedupe`: those of a task, and those of all tasks by way of a ledger."""
