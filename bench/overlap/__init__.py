"""Whether a source may overlap the buffer."""
