"""Items, ledgers and decisions: pure code, without clock, disk or network."""
