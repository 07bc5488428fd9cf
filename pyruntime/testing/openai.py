"""The command `python -m pillarbox.testing.openai`: a stand-in for a service that speaks OpenAI's language.

For the main thread. `pillarbox.testing.serve` starts the same service inside a script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

from pillarbox.testing.stand_in_service import DIMENSIONS, serve

DESCRIPTION = """\
Serve embeddings, chat completions and look-ups on loopback, without a model: vectors and answers are made of
the text by rules, alike each time. The first line printed is the base URL."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C, and return the exit status: 0, or 2 for an error.

    arguments: None for those of the process. Raises SystemExit for words that it does not understand.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pillarbox.testing.openai",
        description=DESCRIPTION,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS, help="of vectors")
    parser.add_argument("--key", help="the key that requests must have as a bearer token")
    faults = parser.add_argument_group("faults", "shares are of all requests, from 0 to 1")
    faults.add_argument(
        "--rate-429",
        type=float,
        metavar="PER_SECOND",
        help="refuse requests beyond so many a second with 429 and Retry-After",
    )
    faults.add_argument("--status-500", type=float, default=0.0, metavar="SHARE", help="fail with status 500")
    faults.add_argument("--hang", type=float, default=0.0, metavar="SHARE", help="give no answer")
    faults.add_argument("--cut", type=float, default=0.0, metavar="SHARE", help="give half an answer")
    faults.add_argument("--slow", type=float, default=0.0, metavar="SECONDS", help="time of each answer")
    faults.add_argument("--seed", type=int, default=0, help="another one draws other requests to fail")
    words = parser.parse_args(arguments)
    try:
        service = serve(**vars(words))
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    with service, suppress(KeyboardInterrupt):
        print(service.url, flush=True)
        service.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
