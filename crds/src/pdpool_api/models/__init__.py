"""What is known of a pool's model: its sizes, from the spec or from a table shipped by id."""

from pdpool_api.models.facts import ModelFacts, facts, table

__all__ = ["ModelFacts", "facts", "table"]
