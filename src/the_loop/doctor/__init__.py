"""`the-loop doctor`: what must hold for one poller, examined as its user."""
