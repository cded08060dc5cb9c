"""The forward pass in plain NumPy float32: slow, simple, and what the engine is measured against."""
