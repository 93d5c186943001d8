"""A restart-proof poller that hands work items to a command."""

__version__ = "0.1.0"
