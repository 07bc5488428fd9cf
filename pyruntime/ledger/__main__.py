"""`python -m pillarbox.ledger`: the command line of the ledger."""

import sys

from pillarbox.ledger.cli import main

if __name__ == "__main__":
    sys.exit(main())
