"""A source and a runner for the-loop."""
