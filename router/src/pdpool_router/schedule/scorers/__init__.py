"""Scorers: each adds one term, in milliseconds, to the predicted time of a choice. One file each.

A scorer is frozen parameters and one pure function over all candidates at once. More load never makes a term smaller,
more cached tokens never make it larger; tests hold every scorer to it.
"""
