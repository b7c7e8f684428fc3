"""Room base: errors, files and checked configuration: the ground floor, imports nothing of ours."""
