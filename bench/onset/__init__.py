"""What `lz_onset` guarantees: every loop ends."""
