"""The harm of one client to the others: hostile requests beside an ordinary stream."""
