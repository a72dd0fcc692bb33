"""Repairs of upstream, for requests without a penalty too."""
