"""Nothing here is for Python; see waiting.pxd."""
