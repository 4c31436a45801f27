"""ConfigMap of the router: its configuration file, read from a mounted directory and reloaded when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import names, router_config
from pdpool_api.names import Role
from pdpool_api.speeds import first_guesses
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import CONFIG_MAPS, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool


def config_map(pool: InferencePool) -> Child:
    """The file for this pool: what it serves, its pods as endpoints, how it chooses, its bounds."""
    router = pool.spec.router
    config = router_config.RouterConfig(
        model=router_config.Model(
            served_names=pool.spec.model.names, adapters=tuple(each.name for each in pool.spec.model.adapters)
        ),
        endpoints=router_config.Endpoints(
            pods=router_config.PodSource(namespace=pool.namespace, pool=pool.name, uid=pool.uid)
        ),
        speeds=first_guesses(pool.spec),
        routing=router_config.Routing.model_validate(router.routing.model_dump()),
        limits=router_config.Limits.model_validate({**router.limits.model_dump(), **_waking(pool)}),
        auth=router_config.Auth(
            api_keys_file=_file(names.ROUTER_KEYS_FILE, router.auth is not None and router.auth.api_keys_secret_ref),
            salt_file=_file(names.ROUTER_SALT_FILE, router.auth is not None and router.auth.salt_secret_ref),
        ),
        tenants=tuple(router_config.Tenant.model_validate(each.model_dump()) for each in router.tenants),
        tls=router_config.Tls(
            cert_file=_file(names.ROUTER_CERT_FILE, router.tls_secret_ref),
            key_file=_file(names.ROUTER_KEY_FILE, router.tls_secret_ref),
        ),
    )
    body = {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": metadata(pool, Role.ROUTER, "router"),
        "data": {names.ROUTER_CONFIG_FILE: router_config.dump(config)},
    }
    return Child(CONFIG_MAPS, body, role=Role.ROUTER)


def _waking(pool: InferencePool) -> dict[str, float]:
    """A pool that never is at zero has nothing to wake from: without an engine its router says so at once."""
    roles = [pool.spec.role(role) for role in pool.spec.roles]
    may_be_at_zero = any(
        each.autoscaling.min_replicas == 0 if each.autoscaling is not None else each.replicas == 0 for each in roles
    )
    return {} if may_be_at_zero else {"wake_seconds": 0}


def _file(name: str, present: object) -> str:
    return f"{names.ROUTER_CONFIG_DIR}/{name}" if present else ""
