"""Names of the implementations in a result."""

OURS = "ours"
ONSET_2 = "ours, onset 2"
MEMORY = "ours, onset 2, memory on"
REFERENCE = "reference"
UPSTREAM = "frequency + repetition"
COPY = "copy of touched bytes"
