"""Images of pdpool without a registry or a daemon: `python -m e2e.images build`.

Boundary: OCI archives in the cache, named by their content; bringing them into a node is the cluster tool's business.
"""
