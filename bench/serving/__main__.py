"""Run the command line."""

from bench.serving.serving import main

if __name__ == "__main__":
    main()
