"""Settings of every test."""

import pytest
from hypothesis import settings

# No test asserts speed: a busy machine must not fail a property.
settings.register_profile("pdpool", deadline=None, print_blob=True)
settings.load_profile("pdpool")

ON_REQUEST = ("argocd", "browser", "helm", "node")
"""Markers of tests that install, build or wait for much: they run only where asked for by exactly this name."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what nobody asked for by name, whatever else the expression of markers says."""
    unasked = {marker for marker in ON_REQUEST if config.option.markexpr != marker}
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
