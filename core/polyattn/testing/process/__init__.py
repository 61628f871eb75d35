"""What stands between the suite and the code it runs: limits, settings, a worker process."""
