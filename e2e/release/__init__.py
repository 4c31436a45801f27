"""A release, made and checked without being published: `python -m e2e.release` (`make release`).

Boundary: everything is built from the working copy into `dist/release`; nothing leaves the machine.
"""
