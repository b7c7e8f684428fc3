"""Room remote: commands that change another machine, or a host of machines."""
