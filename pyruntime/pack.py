"""Pack Pillarbox, and packages that Spark's workers lack, into a zip that Spark unpacks on each executor.

Managed clusters and bare workers have no compiler, no registry and a Python of their own. `pack` writes one
file and returns the settings with which Spark sends it along: `spark.archives`, which unpacks it in the
working folder of each executor, and `PYTHONPATH` there. Nothing is installed, and nothing of the workers is
changed.

Any thread; neither Spark nor the compiled kernel is imported.
"""

# Why an archive. `spark.submit.pyFiles` and `addPyFile` leave a zip packed, and Python imports no compiled
# module from a packed one; given a wheel they do nothing. An environment packed whole has its own Python and
# everything that was ever installed: 714 MB beside 3.
#
# Two ways to come by the files. Those of this Python are copied as they are installed here: what the driver
# runs is what the workers run, and no registry is asked. For another Python or platform pip fetches wheels,
# which have their tags checked by pip; an installed file says nothing of the systems on which it loads.

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import machinery, metadata, util
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

FOLDER = "pillarbox-pack"
"""The folder that Spark makes of the archive, in the working folder of each executor."""

BUILD_SUFFIXES = frozenset({".pyc", ".pyx", ".pxd", ".pyi", ".h", ".cpp"})
"""Files of a package that nothing reads at run time."""
OF_SPARK = frozenset({"pyspark", "py4j", "pillarbox"})
"""Distributions that are never copied: a worker has Spark's own, and Pillarbox is packed by itself."""
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version of this process, in the form in which `Pack.python` has it."""
PIP_TIMEOUT_S = 600
MAX_LINES_SHOWN = 8
OLDEST_MANYLINUX = 5
"""The minor version of glibc of the first manylinux."""
MANYLINUX_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
TIMESTAMP = (1980, 1, 1, 0, 0, 0)
"""Of each file in an archive: equal contents make equal archives."""


class Pack(NamedTuple):
    """An archive for Spark's executors. A plain value.

    path: the zip. python: the version of Python that it is for, as "3.11". platform: the tag of the platform,
    as "linux_x86_64". glibc: the oldest version of glibc with which its compiled files load; None where they
    name none.
    packed: names and versions of the distributions in it.
    """

    path: Path
    python: str
    platform: str
    glibc: str | None
    packed: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Spark that send the archive along.

            spark = SparkSession.builder.config(map=pack().settings).getOrCreate()

        They are read when Spark starts: a session that runs already ignores them.
        """
        # Spark takes a path for a URI, in which a space is written as %20.
        plain = quote(str(self.path)) == str(self.path)
        return {
            "spark.archives": f"{self.path if plain else self.path.as_uri()}#{FOLDER}",
            "spark.executorEnv.PYTHONPATH": FOLDER,
        }

    @property
    def options(self) -> str:
        """The same as words for `spark-submit`, quoted for a shell."""
        return " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in self.settings.items())


def pack(
    path: str | os.PathLike[str] | None = None,
    *,
    include: Iterable[str] = (),
    python: str | None = None,
    platform: str | None = None,
    find_links: str | os.PathLike[str] | None = None,
) -> Pack:
    """Write Pillarbox as an archive for executors that lack it; returns its path and Spark's settings.

        >>> from pillarbox.pack import pack
        >>> sent = pack()
        >>> sorted(sent.settings)
        ['spark.archives', 'spark.executorEnv.PYTHONPATH']

    Give `settings` to the builder of the session: `SparkSession.builder.config(map=sent.settings)`.

    path: a file, or a folder in which it is named for its contents. None: a temporary file, which is deleted
        when this process ends.
    include: extras of Pillarbox ("embeddings", "chat", ...) or names of installed packages or of their
        modules, each with all that it requires but PySpark: what the workers' Python lacks. "spark" is
        pyarrow and pandas.
    python: the workers' version of Python, as "3.11". None for the one of this process.
    platform: the tag of the workers' platform, as "manylinux_2_28_x86_64". None for this machine's.
    find_links: a folder with wheels, asked before the registry. Only for another Python or platform.

    What is installed here is copied where it is of that Python and platform; otherwise pip fetches wheels.
    Raises ValueError for a name, version or tag that is unknown or not installed, RuntimeError where there is
    no such wheel, OSError where the file cannot be written.
    """
    names = list(include)
    _check(names, python, platform)
    version = python or PYTHON
    with tempfile.TemporaryDirectory(prefix="pillarbox-pack-") as scratch:
        found = _installed(names, platform) if version == PYTHON else None
        if found is None:
            found = _fetched(names, version, platform, find_links, Path(scratch))
        files, packed = found
        if not any(_is_compiled(name) for name in files if name.startswith("pillarbox/kernel/")):
            raise ValueError(
                f"Pillarbox is not built for Python {version} here: its kernel has no compiled module; "
                "install it anew, or run `make build` in a checkout"
            )
        tag = platform or _platform_here()
        stem = f"pillarbox-{metadata.version('pillarbox')}-cp{version.replace('.', '')}-{tag}.zip"
        to = _destination(path, stem)
        _write(to, files)
        return Pack(to, version, tag, _oldest_glibc(files.values()), tuple(packed))


def _check(names: list[str], python: str | None, platform: str | None) -> None:
    if python is not None and not re.fullmatch(r"3\.\d{1,2}", python):
        raise ValueError(f"python={python!r}: must be a minor version of Python, as '3.11'")
    if platform is not None and not re.fullmatch(r"[a-z]+(_?\d+)*_[a-z0-9_]+", platform):
        raise ValueError(
            f"platform={platform!r}: must be the tag of a platform, as 'manylinux_2_28_x86_64' or "
            "'manylinux_2_28_aarch64'"
        )
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
            raise ValueError(
                f"include={name!r}: must be an extra of Pillarbox or the name of an installed package"
            )


def _destination(path: str | os.PathLike[str] | None, stem: str) -> Path:
    if path is None:
        folder = tempfile.mkdtemp(prefix="pillarbox-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / stem
    to = Path(path).absolute()
    if to.is_dir():
        to = to / stem
    if set(str(to)) & {"#", ","}:
        raise ValueError(f"path={str(to)!r}: spark.archives allows neither '#' nor ',' in a path")
    if to.suffix != ".zip":
        raise ValueError(f"path={str(to)!r}: must end with .zip, by which Spark knows how to unpack it")
    return to


def _write(to: Path, files: dict[str, Path]) -> None:
    part = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, TIMESTAMP)
                entry.external_attr = (0o755 if _is_compiled(name) else 0o644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                with open(files[name], "rb") as source, archive.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        os.replace(part, to)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _is_compiled(name: str) -> bool:
    return name.endswith((".so", ".pyd", ".dylib")) or ".so." in name


def _oldest_glibc(files: Iterable[Path]) -> str | None:
    """The newest version of glibc that the compiled files ask for: an older one does not load them."""
    newest = 0
    for file in files:
        if _is_compiled(file.name):
            found = re.findall(rb"GLIBC_2\.(\d{1,3})", file.read_bytes())
            newest = max([newest, *map(int, found)])
    return f"2.{newest}" if newest else None


def _platform_here() -> str:
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


# -- files that are installed here --------------------------------------------------------------------------


def _installed(names: list[str], platform: str | None) -> tuple[dict[str, Path], list[str]] | None:
    """The installed files by their names in the archive; None where one is not for that platform."""
    distributions = [each for each in _closure(names) if each.metadata["Name"].lower() not in OF_SPARK]
    own = metadata.distribution("pillarbox")
    if platform is not None:
        allowed = set(_tags_within(platform))
        if not all(_platforms_of(each) & allowed for each in (own, *distributions)):
            return None
    files = dict(_own_files())
    files |= _metadata_of(own)
    packed = [f"pillarbox {own.version}"]
    for each in distributions:
        files |= _files_of(each)
        packed.append(f"{each.metadata['Name']} {each.version}")
    return files, packed


def _own_files() -> Iterator[tuple[str, Path]]:
    """Pillarbox' own files. In a checkout the kernel lies in a folder of its own."""
    suffixes = set(machinery.EXTENSION_SUFFIXES)
    kernel = util.find_spec("pillarbox.kernel")
    folders = {"pillarbox": Path(__file__).parent}
    if kernel is not None and kernel.submodule_search_locations:
        folders["pillarbox/kernel"] = Path(next(iter(kernel.submodule_search_locations)))
    for prefix, folder in folders.items():
        for file in folder.rglob("*"):
            name = file.relative_to(folder).as_posix()
            if not file.is_file() or file.suffix in BUILD_SUFFIXES:
                continue
            # Those that were built for another Python are of no use to this one.
            if _is_compiled(name) and "." + file.name.partition(".")[2] not in suffixes:
                continue
            yield f"{prefix}/{name}", file


def _metadata_of(distribution: metadata.Distribution) -> dict[str, Path]:
    """The file by which a worker knows its version. In a checkout it has another name."""
    folder = getattr(distribution, "_path", None)
    places = [] if folder is None else [Path(folder) / name for name in ("METADATA", "PKG-INFO")]
    name = f"pillarbox-{distribution.version}.dist-info/METADATA"
    return next(({name: place} for place in places if place.is_file()), {})


def _files_of(distribution: metadata.Distribution) -> dict[str, Path]:
    name = distribution.metadata["Name"]
    found = {}
    for file in distribution.files or ():
        # Scripts lie outside of the folder of packages, and workers start none.
        if ".." in file.parts or file.suffix in {".pyc", ".pth"}:
            continue
        path = Path(str(file.locate()))
        if path.is_file():
            found[file.as_posix()] = path
    if not any(not each.split("/")[0].endswith((".dist-info", ".egg-info")) for each in found):
        raise ValueError(
            f"include={name!r}: its files are not known, as of an editable install; install it by a wheel"
        )
    return found


def _requirement(text: str) -> Any:
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(module).Requirement(text)
    raise ValueError("include= needs the package packaging: pip install packaging")


def _requirements(distribution: metadata.Distribution, extras: Iterable[str]) -> Iterator[Any]:
    """The requirements of a distribution on this machine, with these extras."""
    for text in distribution.requires or ():
        requirement = _requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _distributions_of(name: str) -> list[str]:
    """The distributions that a name stands for: its own, or those that bring the module of this name."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return [*dict.fromkeys(metadata.packages_distributions().get(name, [name]))]
    return [name]


def _closure(names: Iterable[str]) -> list[metadata.Distribution]:
    """The installed distributions that these names stand for, and all that they require, by their names."""
    own = metadata.distribution("pillarbox")
    extras = set(own.metadata.get_all("Provides-Extra") or ())
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    # The name of a distribution, its extras, what asks for it.
    waiting: list[tuple[str, frozenset[str], str]] = []
    for name in names:
        why = f"include={name!r}"
        if name in extras:
            waiting.append(("pillarbox", frozenset({name}), why))
        else:
            waiting += [(each, frozenset(), why) for each in _distributions_of(name)]
    while waiting:
        name, asked, why = waiting.pop()
        canonical = re.sub(r"[-_.]+", "-", name).lower()
        if (canonical, asked) in seen or canonical in OF_SPARK - {"pillarbox"}:
            continue
        seen.add((canonical, asked))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ValueError(
                f"{why}: {name} is neither installed here nor one of the extras of Pillarbox "
                f"({', '.join(sorted(extras))}); install it on the driver first. Modules of your own travel "
                "by spark.submit.pyFiles"
            ) from None
        found[canonical] = distribution
        for each in _requirements(distribution, asked):
            waiting.append((each.name, frozenset(each.extras), f"{why}, which requires {each.name}"))
    found.pop("pillarbox", None)
    return [found[name] for name in sorted(found)]


# -- wheels for another Python or platform ------------------------------------------------------------------


def _tags_within(platform: str) -> Iterator[str]:
    """The tags of platforms whose wheels run on one of this tag, the nearest first, and "any"."""
    for pattern, oldest in (
        (r"(manylinux_2)_(\d+)_(\w+)", OLDEST_MANYLINUX),
        (r"(musllinux_1)_(\d+)_(\w+)", 0),
    ):
        match = re.fullmatch(pattern, platform)
        if match is None:
            continue
        for minor in range(int(match[2]), oldest - 1, -1):
            yield f"{match[1]}_{minor}_{match[3]}"
            if match[1].startswith("many") and minor in MANYLINUX_ALIASES:
                yield f"{MANYLINUX_ALIASES[minor]}_{match[3]}"
        break
    else:
        yield platform
        for minor, alias in MANYLINUX_ALIASES.items():
            if platform.startswith(f"{alias}_"):
                yield from _tags_within(platform.replace(alias, f"manylinux_2_{minor}"))
    yield "any"


def _platforms_of(distribution: metadata.Distribution) -> set[str]:
    """The tags of the platforms of the wheel from which it was installed; none where it does not say."""
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    return {part for tag in tags for part in tag.rsplit("-", 1)[-1].split(".")}


def _fetched(
    names: list[str],
    python: str,
    platform: str | None,
    find_links: str | os.PathLike[str] | None,
    folder: Path,
) -> tuple[dict[str, Path], list[str]]:
    """The files of wheels that pip has fetched into `folder`."""
    version = metadata.version("pillarbox")
    tag = platform or _platform_here()
    asked = f"pillarbox {version} for Python {python} on {tag}"
    own = _pip([f"pillarbox=={version}", "--no-deps"], python, tag, find_links, folder, asked)
    if names:
        wanted = [str(each) for each in _wanted(names)]
        own = _pip(wanted, python, tag, find_links, folder, f"{', '.join(names)} for {asked}")
    for unused in OF_SPARK - {"pillarbox"}:
        own.pop(unused, None)
    files = {
        file.relative_to(folder).as_posix(): file
        for file in folder.rglob("*")
        if file.is_file() and file.suffix != ".pyc" and file.relative_to(folder).parts[0] != "bin"
    }
    return files, [f"{name} {number}" for name, number in own.items()]


def _wanted(names: Iterable[str]) -> Iterator[Any]:
    """The requirements that these names stand for, without Spark's own."""
    own = metadata.distribution("pillarbox")
    extras = set(own.metadata.get_all("Provides-Extra") or ())
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in extras:
            for each in _distributions_of(name):
                try:
                    yield f"{each}=={metadata.version(each)}"
                except metadata.PackageNotFoundError:
                    yield each
            continue
        for requirement in _requirements(own, [name]):
            if requirement.name == "pillarbox":
                waiting.extend(requirement.extras)
            elif requirement.name not in OF_SPARK:
                requirement.marker = None
                yield requirement


def _pip(
    wanted: Sequence[str],
    python: str,
    platform: str,
    find_links: str | os.PathLike[str] | None,
    folder: Path,
    asked: str,
) -> dict[str, str]:
    """Have pip unpack wheels into `folder`; return their versions by name."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    command += ["--only-binary", ":all:", "--target", str(folder), "--upgrade"]
    command += ["--implementation", "cp", "--python-version", python, "--abi", f"cp{python.replace('.', '')}"]
    command += ["--abi", "abi3", "--abi", "none"]
    command += [word for tag in _tags_within(platform) if tag != "any" for word in ("--platform", tag)]
    if find_links is not None:
        command += ["--find-links", os.fspath(find_links)]
    done = subprocess.run(
        [*command, *wanted],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PIP_TIMEOUT_S,
    )
    if done.returncode:
        from pillarbox.redaction import redacted

        said = "\n".join(redacted(done.stderr).strip().splitlines()[-MAX_LINES_SHOWN:])
        raise RuntimeError(
            f"there is no wheel of {asked}, or pip cannot fetch it: build one (`make wheels` in a checkout) "
            "and name its folder with find_links (--find-links), or pack on a machine like the workers. "
            f"pip: {said}"
        )
    return {each.metadata["Name"]: each.version for each in metadata.distributions(path=[str(folder)])}


# -- the command --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Write an archive and print the settings of Spark for it; returns 2 where it cannot be made."""
    parser = argparse.ArgumentParser(prog="pillarbox pack", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument(
        *("-o", "--output"),
        metavar="FILE",
        default=".",
        help="the zip, or a folder for it (default: this one)",
    )
    parser.add_argument(
        "--include",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="extras of Pillarbox or packages that the workers lack, with what they require; 'spark' is "
        "pyarrow and pandas",
    )
    parser.add_argument("--python", metavar="3.N", help="the workers' Python (default: this one's version)")
    parser.add_argument(
        "--platform",
        metavar="TAG",
        help="the workers' platform, as manylinux_2_28_x86_64 (default: this one)",
    )
    parser.add_argument("--find-links", metavar="FOLDER", help="wheels, for another Python or platform")
    words = parser.parse_args(arguments)
    try:
        made = pack(
            words.output,
            include=words.include,
            python=words.python,
            platform=words.platform,
            find_links=words.find_links,
        )
    except (OSError, ValueError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"pillarbox pack: {error}", file=sys.stderr)
        return 2
    _print(made, print)
    return 0


def _print(made: Pack, say: Callable[[str], None]) -> None:
    glibc = f" with glibc {made.glibc} or later" if made.glibc else ""
    say(f"{made.path}: {made.path.stat().st_size / 1e6:.1f} MB")
    say(f"for Python {made.python} on {made.platform}{glibc}: {', '.join(made.packed)}")
    if made.python != PYTHON:
        say(
            f"WARNING: this is Python {PYTHON}, and PySpark runs no functions of it on workers with Python "
            f"{made.python}: start the driver with Python {made.python}"
        )
    say("\nin a program:\n\n    SparkSession.builder.config(map={")
    for name, value in made.settings.items():
        say(f"        {name!r}: {value!r},")
    say("    })\n\non the command line:\n")
    say(f"    spark-submit {made.options} JOB.py\n    pillarbox doctor --cluster --master URL {made.options}")
    say(
        "\nWith --deploy-mode cluster the driver needs it too: add "
        f"spark.yarn.appMasterEnv.PYTHONPATH={FOLDER} on YARN, "
        f"spark.kubernetes.driverEnv.PYTHONPATH={FOLDER} "
        "on Kubernetes."
    )
