"""What the implementations and one kind of timing are called in a result."""

OURS = "ours"
ONSET_2 = "ours, onset 2"
MEMORY = "ours, onset 2, memory on"
REFERENCE = "reference"
DENSE = "dense B x V x W"
UPSTREAM = "frequency + repetition"
DRY = "DRY style"
EMPTY = "empty kernel"
COPY = "copy of touched bytes"

LAUNCH_TO_FINISH = "launch to finish"
"""By the clock of the host, from a launch until the device is done."""
