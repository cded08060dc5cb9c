"""The benchmark harness: our engine beside its peers, one file and one machine, alternating runs."""
