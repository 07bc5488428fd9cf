# Its classes are used from Python alone.
