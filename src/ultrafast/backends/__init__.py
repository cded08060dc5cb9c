"""What runs requests: the protocol, and the local engine behind it."""
