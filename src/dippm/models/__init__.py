"""Networks, one per file."""
