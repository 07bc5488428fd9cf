# Its functions are called from Python alone.
