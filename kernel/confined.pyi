import threading

from .holder import Holder

class Confined(Holder):
    def adopt(self, *, ended: threading.Thread | None = None) -> None: ...

def described_thread(ident: int) -> str: ...
