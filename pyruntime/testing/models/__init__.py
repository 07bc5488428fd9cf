"""Reference models: what each operation of the kernel means, in plain Python and without the kernel.

A model is a value that never changes; an operation gives the model after it and the result. Any thread.
"""
