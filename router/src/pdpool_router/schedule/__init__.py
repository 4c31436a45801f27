"""Choosing endpoints: pure functions of a request, a snapshot, the time and a source of chance."""
