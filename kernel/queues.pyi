from .resultqueue import ResultQueue

class OrderedQueue(ResultQueue):
    def __init__(self, capacity: int, *, owner_completes: bool = False) -> None: ...

class UnorderedQueue(ResultQueue):
    def __init__(self, capacity: int, *, owner_completes: bool = False) -> None: ...
