"""Living with a service manager, and with other processes."""
