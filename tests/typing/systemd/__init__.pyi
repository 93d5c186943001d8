# The package of that name has no types of its own, and to a type checker `tests/systemd` looks like it.
