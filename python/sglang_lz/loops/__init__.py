"""What a loop is, and where outputs have one: while they grow, on `/metrics`, and in old logs."""
