"""A restart-proof poller that delivers work items to a command."""

__version__ = "0.1.0"
