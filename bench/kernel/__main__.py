"""Run the command line."""

from bench.kernel.kernel import main

if __name__ == "__main__":
    main()
