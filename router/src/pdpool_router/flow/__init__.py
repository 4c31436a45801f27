"""Admission: how many requests may be in hand at once."""
