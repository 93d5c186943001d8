"""Sources of work items."""
