"""Reference pages of the documentation, made from what they describe: the CRD, schemas, the catalogue of metrics.

Boundary: text in, Markdown out; `docs/conf.py` writes the pages when the documentation is built, so that none of them
can be stale and none is in the repository.
"""
