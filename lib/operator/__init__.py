"""Room operator: what the sub-commands of ctl do."""
