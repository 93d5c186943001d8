"""What events are handed to."""
