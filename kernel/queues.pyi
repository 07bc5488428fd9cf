from .resultqueue import ResultQueue

class OrderedQueue(ResultQueue):
    def __init__(self, capacity: int) -> None: ...

class UnorderedQueue(ResultQueue):
    def __init__(self, capacity: int) -> None: ...
