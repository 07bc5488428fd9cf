"""Nothing here is for Python; see arguments.pxd."""
