"""Traces through the real decisions on a virtual clock; the only package that may import both planes."""
