"""The command `pillarbox`, also as `python -m pillarbox`: its commands. For the main thread."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pillarbox.providers import FILE_JOB, provided


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 for good, 1 for what was found, 2 for an error.

    arguments: None for those of the process. Raises SystemExit for words that it does not understand.
    """
    parser = argparse.ArgumentParser(prog="pillarbox", description="Pillarbox on the command line.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # What a command needs is imported when it is called.
    commands.add_parser("ask", add_help=False, help="columns of a model's answers beside those of a file")
    commands.add_parser("doctor", add_help=False, help="check this machine, or the executors of a cluster")
    commands.add_parser("embed", add_help=False, help="a column of vectors beside those of a file")
    commands.add_parser("java-home", add_help=False, help="print a JAVA_HOME for Spark")
    commands.add_parser("ledger", add_help=False, help="the files in which finished calls are kept")
    commands.add_parser("pack", add_help=False, help="one file that brings Pillarbox to Spark's executors")
    words, rest = parser.parse_known_args(arguments)
    if words.command == "doctor":
        from pillarbox.doctor import main as doctor

        return doctor(rest)
    if words.command in ("ask", "embed"):
        status: int = provided(FILE_JOB, f"pillarbox {words.command}")(words.command, rest)
        return status
    if words.command == "pack":
        from pillarbox.pack import main as pack

        return pack(rest)
    if words.command == "java-home":
        from pillarbox.java_home import main as java_home

        return java_home(rest)
    from pillarbox.ledger.cli import main as ledger

    return ledger(rest)


if __name__ == "__main__":
    sys.exit(main())
