"""What scripts/patches does: it applies the patches, and checks, edits and carries them."""
