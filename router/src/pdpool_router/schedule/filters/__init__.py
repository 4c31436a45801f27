"""Filters: which endpoints may serve a request at all. One file each; pure. A filter never reorders."""
