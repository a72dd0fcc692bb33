"""Run the command line."""

import signal
import sys

from bench.models.commands import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main(sys.argv[1:])
