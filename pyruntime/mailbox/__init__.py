"""The event loop of one task: a mailbox, the loop that empties it, and the ways to reach that loop.

One thread, the mailbox thread, owns all state of a task. Everything else reaches it as mail. The
model is Flink's (FLINK-12477), carried over to Python. `MailboxProcessor` and `MailboxExecutor` are in
`processor`.
"""
