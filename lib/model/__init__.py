"""Room model: the nouns of llmgw, the catalog and the messages between the roles."""
