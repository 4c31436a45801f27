"""End-to-end tooling: real parts to run pdpool on, none of which the product imports.

Boundary: the tools here bring up a Kubernetes node, engines and images on this machine; the packages under test never
import `e2e`.
They live outside the workspace members because they need root and programs that no user of pdpool needs.
"""
