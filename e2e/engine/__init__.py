"""Engines to test against: real vLLM with NIXL on the CPU, and a stand-in that imitates its protocols.

Boundary: installing, making a tiny model, starting and ending engine processes. Nothing here is imported by the
product.
"""
