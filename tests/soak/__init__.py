"""Drive real servers with random schedules; hold every sampled position to the oracle."""
