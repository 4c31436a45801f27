"""ConfigMap of the router: its configuration file, read from a mounted directory and reloaded when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import names, router_config
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import CONFIG_MAPS, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool


def config_map(pool: InferencePool) -> Child:
    """The file for this pool: its model names, and its pods as endpoints."""
    config = router_config.RouterConfig(
        model=router_config.Model(served_names=pool.spec.model.names),
        endpoints=router_config.Endpoints(
            pods=router_config.PodSource(namespace=pool.namespace, pool=pool.name, uid=pool.uid)
        ),
    )
    body = {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": metadata(pool, Role.ROUTER, "router"),
        "data": {names.ROUTER_CONFIG_FILE: router_config.dump(config)},
    }
    return Child(CONFIG_MAPS, body, role=Role.ROUTER)
