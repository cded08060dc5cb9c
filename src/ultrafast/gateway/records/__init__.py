"""What the server keeps: projects, keys, capacity and the ledger, in one SQLite file of the data directory."""
