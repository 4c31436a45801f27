"""Sizes that follow demand on a virtual clock: the operator's real tick beside rivals' rules."""
