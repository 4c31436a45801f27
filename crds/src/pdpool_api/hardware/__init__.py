"""Hardware profiles: one YAML each, and their loader."""
