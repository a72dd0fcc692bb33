"""Run the command line."""

from bench.harm.harm import main

if __name__ == "__main__":
    main()
