"""``python -m sglang_lz``: the command line."""

import sys

from sglang_lz.cli import main

if __name__ == "__main__":
    sys.exit(main())
