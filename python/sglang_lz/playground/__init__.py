"""The playground: a local page that shows what the penalty does to an output, and why."""
