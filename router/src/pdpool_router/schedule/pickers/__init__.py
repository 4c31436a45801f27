"""Pickers: from candidates and their costs to one of them. One file each; pure but for the source of chance."""
