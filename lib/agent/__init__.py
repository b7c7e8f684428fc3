"""Room agent: the node's side: what it has, what it should run."""
