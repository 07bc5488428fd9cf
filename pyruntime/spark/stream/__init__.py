"""`async_stream`: the operator over a stream whose slow calls leave with a later micro-batch."""
