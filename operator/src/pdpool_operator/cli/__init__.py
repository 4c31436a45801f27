"""`pdpool` (and `kubectl pdpool`): what a person asks of a pool, from a file or from a cluster.

Boundary: reads and prints; it changes nothing in a cluster. Subcommands are found through the entry-point group
`pdpool.commands`, so that other packages add theirs.
"""
