"""``python -m sglang_lz``: the command line of the distribution."""

import sys

from sglang_lz.cli import main

if __name__ == "__main__":
    sys.exit(main())
