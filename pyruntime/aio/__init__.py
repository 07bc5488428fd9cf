"""The async operator: calls over rows, bounded, in order or as they finish, with time-outs and retries."""
