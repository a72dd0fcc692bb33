"""The loop guard, and where outputs have loops: while they grow, on `/metrics`, in old logs."""
