"""Constraints with proper tokens: whether they are exact, what they cost, and what they change."""
