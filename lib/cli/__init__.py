"""Room cli: how every program of llmgw reads its words, prints its results and ends."""
