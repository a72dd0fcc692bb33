"""The constants of `lz_onset`, its guarantee, and whether it should know templates."""
