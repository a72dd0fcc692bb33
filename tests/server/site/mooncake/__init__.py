"""Stands in for the transfer library of upstream's `mooncake` backend."""
