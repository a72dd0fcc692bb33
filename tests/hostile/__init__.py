"""What one client can do to the others: hostile requests beside an ordinary stream."""
