"""Notices that a function is another than the one whose answers a ledger has: it only warns.

A function may change without its answers changing, so nothing is called again because of this: that is what
`Ledger(version=...)` is for. What a function calls, and what it has closed over, is not looked at. A small
file beside the segments says which code it was. Any thread.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox.ledger.errors import LedgerError, LedgerValueError, LedgerWarning
from pillarbox.ledger.keys import canonical, fingerprint

if TYPE_CHECKING:
    from pillarbox.ledger.ledger import Ledger
    from pillarbox.ledger.scope import Scope

MAX_BYTES = 100


def code_hash(fn: Callable[..., Any]) -> str | None:
    """The version of Python and a hash of the code of `fn`; None for a function that is not of Python."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    return f"{sys.version_info[0]}.{sys.version_info[1]} {fingerprint(_parts(code), 'code').hex()}"


def _parts(code: types.CodeType) -> tuple[Any, ...]:
    constants = [
        _parts(constant) if isinstance(constant, types.CodeType) else _constant(constant)
        for constant in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames[: code.co_argcount], constants


def _constant(constant: Any) -> bytes:
    try:
        return canonical(constant)
    except LedgerValueError:
        return repr(constant).encode()


def _name(ledger: Ledger) -> str:
    return f".function-{fingerprint(ledger.kept_version, 'version').hex()}"


def kept_code(ledger: Ledger, scope: Scope) -> str | None:
    """The hash that `keep_code` has kept; None without it."""
    folder = ledger.folder(scope)
    try:
        return folder.read(_name(ledger), 0, MAX_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        folder.close()


def keep_code(ledger: Ledger, scope: Scope, code: str | None) -> None:
    """Note which code gives the answers of this version from now on. Raises LedgerError and OSError."""
    if code is None or kept_code(ledger, scope) == code:
        return
    folder = ledger.folder(scope)
    folder.make()
    folder.put(_name(ledger), code.encode())


def warn_if_changed(ledger: Ledger, scope: Scope, fn: Callable[..., Any], code: str | None) -> None:
    """Warn with LedgerWarning where the answers of this version came from other code. For the driver."""
    try:
        kept = kept_code(ledger, scope)
    except LedgerError:
        return
    if is_other_code(kept, code):
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        warnings.warn(LedgerWarning(changed_code(name, scope.run, scope.uid, ledger.version)), stacklevel=2)


def is_other_code(kept: str | None, code: str | None) -> bool:
    """Return True if two hashes of code say that it has changed. Pure."""
    # Another Python compiles the same function otherwise.
    return None not in (kept, code) and kept != code and str(kept).split()[0] == str(code).split()[0]


def changed_code(name: str, run: str, uid: str, version: int | str | None) -> str:
    """The message that the function `name` has changed. Pure."""
    return (
        f"the code of {name} has changed since run={run!r}, uid={uid!r} was last done with "
        f"version={version!r}: rows that have an answer are not called again. If its answers are "
        "others now, give it another version: Ledger(..., version=...)"
    )
