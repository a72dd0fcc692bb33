"""Where outputs have loops: while they grow, on `/metrics`, and in old logs."""
