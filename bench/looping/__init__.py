"""Models and prompts that loop in harder ways than the demo's: `python -m bench.looping`."""
