"""Reads: what the API server holds now."""
