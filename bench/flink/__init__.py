"""The kernel beside Flink 2.3: mailbox and queues on Java, queues on Python. `make bench-flink`."""
