"""The source `telegram`."""
