"""The table of functions of `pillarbox.h`, as a Python program may call it: for tests of its contracts.

The fields stand as in the header. A call through `ctypes` gives up the GIL, as a native thread has none;
what the header wants called with the GIL is called with it.
"""

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    PYFUNCTYPE,
    Structure,
    c_bool,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_ulong,
    c_void_p,
)

from pillarbox.kernel import capi

URGENT, DEFERRABLE = 1, 2
LOCK_FREE, MUTEX = 0, 1
OPEN, QUIESCED, CLOSED, WAITS, INVALID = 0, 1, 2, 3, -2

MAIL_FN = CFUNCTYPE(None, c_void_p, c_bool)
POST_FN = CFUNCTYPE(None, c_void_p, c_bool)
RELEASE_FN = CFUNCTYPE(None, c_void_p)


class NativeMail(Structure):
    """A mail, as C has it."""

    _fields_ = (
        ("next", c_void_p),
        ("fn", MAIL_FN),
        ("number", ctypes.c_uint64),
        ("priority", c_int),
        ("flags", ctypes.c_ubyte),
        ("queued", ctypes.c_ubyte),
    )


class Consumer(Structure):
    """The consumer of a TaskMailbox."""

    _fields_ = (("mailbox", c_void_p), ("owner", c_ulong))


class Pair(Structure):
    """The pair that a queue emits."""

    _fields_ = (("element", c_void_p), ("result", c_void_p))


class Functions(Structure):
    """The table."""

    _fields_ = (
        ("version_major", c_int),
        ("version_minor", c_int),
        ("size", c_size_t),
        ("mail_size", c_size_t),
        ("create", CFUNCTYPE(c_void_p, c_int, c_size_t)),
        ("destroy", CFUNCTYPE(None, c_void_p)),
        ("of", PYFUNCTYPE(c_void_p, ctypes.py_object)),
        ("begin_consuming", PYFUNCTYPE(c_void_p, ctypes.py_object, POINTER(Consumer))),
        ("end_consuming", PYFUNCTYPE(None, POINTER(Consumer))),
        ("put", CFUNCTYPE(c_int, c_void_p, c_void_p)),
        ("put_all", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)),
        ("post", CFUNCTYPE(c_int, c_void_p, POST_FN, c_void_p, c_int, c_int)),
        ("take", CFUNCTYPE(c_void_p, c_void_p, c_int, c_int, c_double, POINTER(c_int))),
        ("create_batch", CFUNCTYPE(c_bool, c_void_p)),
        ("take_from_batch", CFUNCTYPE(c_void_p, c_void_p)),
        ("run_batch", CFUNCTYPE(c_size_t, c_void_p)),
        ("run", CFUNCTYPE(c_int, c_void_p)),
        ("drop", CFUNCTYPE(None, c_void_p)),
        ("release", CFUNCTYPE(None, c_void_p)),
        ("quiesce", CFUNCTYPE(None, c_void_p)),
        ("close", CFUNCTYPE(c_void_p, c_void_p)),
        ("state", CFUNCTYPE(c_int, c_void_p)),
        ("waiting", CFUNCTYPE(c_size_t, c_void_p)),
        ("create_queue", CFUNCTYPE(c_void_p, c_int, c_bool)),
        ("destroy_queue", CFUNCTYPE(None, c_void_p, RELEASE_FN)),
        ("queue_of", PYFUNCTYPE(c_void_p, ctypes.py_object)),
        ("put_entry", CFUNCTYPE(c_bool, c_void_p, c_void_p, POINTER(c_int64))),
        ("put_watermark", CFUNCTYPE(c_bool, c_void_p, c_void_p, c_void_p)),
        ("renew", CFUNCTYPE(c_bool, c_void_p, POINTER(c_int64))),
        ("complete", CFUNCTYPE(c_bool, c_void_p, c_int64, c_void_p)),
        ("emit", CFUNCTYPE(c_int, c_void_p, POINTER(Pair), c_int)),
        ("create_confined_queue", CFUNCTYPE(c_void_p, c_int, c_bool)),
        ("collector_of", PYFUNCTYPE(c_void_p, ctypes.py_object)),
        ("collect", CFUNCTYPE(c_bool, c_void_p, c_void_p, c_void_p)),
    )


def _found() -> Functions:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return Functions.from_address(pointer(capi.table, b"pillarbox.kernel.capi.table"))


table = _found()


class Mails:
    """Native mails, aligned, and what was said to each: its index, and whether it was to run."""

    def __init__(self, count: int) -> None:
        self.said: list[tuple[int, bool]] = []
        self._memory = ctypes.create_string_buffer((count + 1) * ctypes.sizeof(NativeMail))
        self.first = (ctypes.addressof(self._memory) + 15) // 16 * 16
        self.fn = MAIL_FN(lambda address, run: self.said.append((self.index(address), run)))
        for index in range(count):
            self.make(index)

    def make(self, index: int, priority: int = 0, flags: int = 0) -> int:
        mail = self[index]
        mail.fn, mail.priority, mail.flags = self.fn, priority, flags
        return self.at(index)

    def __getitem__(self, index: int) -> NativeMail:
        return NativeMail.from_address(self.at(index))

    def at(self, index: int) -> int:
        return self.first + index * ctypes.sizeof(NativeMail)

    def index(self, address: int) -> int:
        return (address - self.first) // ctypes.sizeof(NativeMail)

    def pointers(self, *indices: int) -> "ctypes.Array[c_void_p]":
        return (c_void_p * len(indices))(*map(self.at, indices))


def take(mailbox: int, priority: int = -1, skip: int = 0, timeout: float = 0.0) -> tuple[int | None, int]:
    """The address of the mail, or None, and the state that was seen."""
    state = c_int(-1)
    mail = table.take(mailbox, priority, skip, timeout, ctypes.byref(state))
    return mail, state.value


def chain(mail: int | None) -> list[int]:
    """The addresses of linked mails."""
    found = []
    while mail:
        found.append(mail)
        mail = NativeMail.from_address(mail).next
    return found
