"""`make demo`: the whole product on one machine, from nothing to an answer, and what it did told in a few lines.

Boundary: puts the tools in order and shows progress; each tool does its own work and can be used without the demo.
"""
