"""The kernel's headers as builds for tests have them: the shipped ones, and `spec/include` over them.

Any process may call. A folder of headers is made once for each content, below `build/headers`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from . import defects

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "kernel" / "include"
OVER_THEM = ROOT / "spec" / "include"
TRACED = OVER_THEM / "traced"
BUILD = ROOT / "build" / "headers"
# Plain data whose uses the scheduler of `tests/native` watches: header, what it says, what stands there then.
WATCHED = {"pillarbox_queue_slots.h": ("void* element = nullptr;", "Watched<void*> element = nullptr;")}


def for_tests(
    *,
    planted: bool = False,
    traced: bool = False,
    watched: bool = False,
    seeded: Sequence[defects.Seeded] = (),
) -> Path:
    """The folder of headers for builds of tests, made if need be: a mailbox of theirs may have a mutex.

    With `planted` they can have a defect, which PILLARBOX_DEFECT names, or one of `seeded` instead; with
    `traced` mailboxes record, and with `watched` the scheduler sees uses of plain data.
    """
    paths = {path.name: path for folder in (SHIPPED, OVER_THEM) for path in folder.glob("*.h")}
    texts = {name: path.read_text() for name, path in paths.items()}
    if planted or seeded:
        seeded = seeded or defects.seeded()
        for name, path in paths.items():
            texts[name] = defects.plantable(path.relative_to(ROOT).as_posix(), texts[name], seeded)
        texts["pillarbox_defect_list.h"] = defects.names_header(seeded)
    for name, (shipped, other) in WATCHED.items() if watched else ():
        if texts[name].count(shipped) != 1:
            raise defects.DefectError(f"{name} must have this once: {shipped}")
        texts[name] = texts[name].replace(shipped, other)
    if traced:
        texts["pillarbox_untraced_mailbox.h"] = texts["pillarbox_mailbox.h"]
        texts |= {path.name: path.read_text() for path in TRACED.glob("*.h")}
    return folder_of(texts)


def folder_of(texts: dict[str, str]) -> Path:
    """A folder with these headers, by name."""
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()
    folder = BUILD / digest[:16]
    if not folder.exists():
        fresh = folder.with_suffix(f".{os.getpid()}")
        fresh.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (fresh / name).write_text(text)
        try:
            fresh.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return folder
