"""Room shim: one shard's owner, and the guard before rank 0."""
