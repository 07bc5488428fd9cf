import threading

from .gc_container import GCContainer

class Confined(GCContainer):
    def adopt(self, *, ended: threading.Thread | None = None) -> None: ...

def described_thread(ident: int) -> str: ...
