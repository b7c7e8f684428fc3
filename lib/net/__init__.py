"""Room net: HTTP and TLS; knows nothing of llmgw."""
