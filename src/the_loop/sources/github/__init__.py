"""The `github` source."""
