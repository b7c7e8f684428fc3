"""Room rules: every decision, pure: no clock, socket, file or log."""
