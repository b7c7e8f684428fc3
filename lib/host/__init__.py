"""Room host: this machine: commands, processes, GPUs, adapters, keys."""
