"""Model files: finding and fetching them, and reading them with distrust."""
