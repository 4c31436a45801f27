"""Engines: everything that differs between engines, one package each; nothing else names an engine."""
