"""`make bench-operator`: what hundreds of pools cost, and how soon a change of one reaches its children.

Boundary: a control plane without a node, the operator as a process under the rights of its manifest.
"""
