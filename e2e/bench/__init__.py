"""Benchmarks that run pdpool beside its peers on one machine, in the same minutes.

Boundary: starts routers, engines that only answer, and load, all on loopback and bounded in count and time; nothing
here is part of the product.
Only ratios of interleaved rounds are judged: absolute figures move with the host by more than what is compared.
"""
