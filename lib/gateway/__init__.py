"""Room gateway: the router's data plane."""
