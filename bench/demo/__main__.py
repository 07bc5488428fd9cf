"""The command line of the demo: `python -m bench.demo embed` and `python -m bench.demo lookup`.

The exit status is 0 if every check on the output holds, 1 if not, 2 for bad arguments or missing data,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from bench.demo import embed, lookup
from bench.demo.data import DataMissingError
from bench.demo.server_process import ServerFailedError
from bench.demo.summary import Screen


def rows(text: str) -> int | None:
    """The argument of `--rows`: a number from 1, or `all`, which is None."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"rows is {text!r}; allowed are a number from 1, or all")
    return int(text)


def share(text: str) -> float:
    """The argument of `--busy`: at least 0 and less than 1."""
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"the share is {text}; allowed is 0 to less than 1")
    return value


def milliseconds(text: str) -> float:
    """The argument of `--latency`: 0 or more."""
    value = float(text)
    if not 0.0 <= value < 60_000.0:
        raise argparse.ArgumentTypeError(f"the latency is {text} ms; allowed is 0 to less than 60000")
    return value


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description="Pillarbox's two demonstration jobs."
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of the output (out/demo)")
    common.add_argument("--plain", action="store_true", help="lines of text instead of a live bar")

    one = jobs.add_parser("embed", parents=[common], help="verses through an embedding model, in order")
    one.add_argument("--rows", type=rows, default=argparse.SUPPRESS, help="a number (1000) or all (31102)")
    one.add_argument("--query", default=embed.DEFAULT_QUERY, help="text whose closest verses are shown")

    two = jobs.add_parser(
        "lookup", parents=[common], help="flights enriched with plane and weather, unordered"
    )
    two.add_argument(
        "--rows", type=rows, default=argparse.SUPPRESS, help="a number or all (336776, the default)"
    )
    two.add_argument(
        "--latency", type=milliseconds, default=lookup.DEFAULT_LATENCY, help="mean, milliseconds (20)"
    )
    two.add_argument("--busy", type=share, default=lookup.DEFAULT_BUSY, help="share of 503 answers (0.001)")
    return parser


def run(options: argparse.Namespace, screen: Screen) -> bool:
    """Runs the job that the command line names; the lookup job where the embedding job cannot run."""
    if options.job == "embed":
        try:
            given = getattr(options, "rows", embed.DEFAULT_ROWS)
            return embed.run(screen, rows=given, out=options.out, query=options.query)
        except (DataMissingError, ServerFailedError) as error:
            screen.say(f"The embedding job cannot run here: {error}. Running the lookup job instead.")
            return lookup.run(screen, rows=getattr(options, "rows", None), out=options.out)
    return lookup.run(
        screen,
        rows=getattr(options, "rows", None),
        out=options.out,
        latency=options.latency,
        busy=options.busy,
    )


def leave(number: int, frame: FrameType | None) -> None:
    """Ends the job by an exception, so that everything it started is stopped."""
    raise SystemExit(128 + number)


def main() -> int:
    """Runs the command line; returns the exit status."""
    options = arguments().parse_args()
    # Not KeyboardInterrupt: the library that talks to the virtual machine writes a traceback for that one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    screen = Screen(plain=options.plain or not (sys.stdout.isatty() and sys.stderr.isatty()))
    try:
        return 0 if run(options, screen) else 1
    except SystemExit:
        screen.say("\nInterrupted; the servers and Spark are stopped.")
        raise
    except (DataMissingError, ServerFailedError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
