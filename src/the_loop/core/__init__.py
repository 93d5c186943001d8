"""What the poller knows and decides: pure, without clock, disk or network."""
