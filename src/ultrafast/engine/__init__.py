"""The engine process: requests in, tokens out, one native step at a time."""
