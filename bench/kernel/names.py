"""What the implementations are called in a result."""

OURS = "ours"
REFERENCE = "reference"
DENSE = "dense B x V x W"
UPSTREAM = "frequency + repetition"
DRY = "DRY style"
EMPTY = "empty kernel"
COPY = "copy of touched bytes"
