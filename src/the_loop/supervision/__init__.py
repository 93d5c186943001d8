"""Integration with systemd, and control of the process that holds a lock."""
