"""The object that stands for "this is a watermark" where a result queue would give an element.

It is one object in every process: pickling gives back this one, so `is` works. Any thread.
"""


class _Watermark:
    __slots__ = ()

    def __repr__(self) -> str:
        return "pillarbox.kernel.WATERMARK"

    def __reduce__(self) -> str:
        return "WATERMARK"


WATERMARK = _Watermark()
