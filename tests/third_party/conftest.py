"""The packages in here are strangers': their tests run where they are installed."""

collect_ignore = ["additive"]
