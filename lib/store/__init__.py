"""Room store: the one SQLite file."""
