"""The Secrets of a router: files beside its configuration.

Boundary: pure; Secrets appear by reference only. All files lie in one volume, so that a configuration and the files
that it names change together. A Secret that does not exist must be named, and be noticed soon after it appears: for a
volume the kubelet only waits, says nothing in the pod's status, and tries again after minutes. So the volume takes what
there is, and a first container, which ends at once, has what must be there as variables: for these the kubelet names
what is missing, and looks again every few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pdpool_api import names

if TYPE_CHECKING:
    from pdpool_api.router_spec import Router
    from pdpool_operator.records import Json

_CONFIG_VOLUME: Final = "config"
_OWN_CONFIG_VOLUME: Final = "pdpool-config"
"""Where the author has a volume of the usual name. It is not the name of all: that would roll every router."""


class _Entry(NamedTuple):
    secret: str
    key: str


def config_volume(router: Router, config_map: str) -> Json:
    """The volume with the configuration, and the files of Secrets that it names."""
    taken = any(each["name"] == _CONFIG_VOLUME for each in router.template.volumes)
    name = _OWN_CONFIG_VOLUME if taken else _CONFIG_VOLUME
    wanted = _entries(router)
    if not wanted:
        return {"name": name, "configMap": {"name": config_map}}
    sources: list[Json] = [{"configMap": {"name": config_map}}]
    for secret in dict.fromkeys(each.secret for each in wanted):
        items = [{"key": each.key, "path": each.key} for each in wanted if each.secret == secret]
        sources.append({"secret": {"name": secret, "items": items, "optional": True}})
    return {"name": name, "projected": {"sources": sources}}


def reference_check(router: Router, container: Json) -> list[Json]:
    """The container that makes missing Secrets known, like the router's own but for its work; none without Secrets."""
    wanted = _entries(router)
    if not wanted:
        return []
    variables = [
        {"name": f"REFERENCE_{number}", "valueFrom": {"secretKeyRef": {"name": each.secret, "key": each.key}}}
        for number, each in enumerate(wanted)
    ]
    same = {name: container[name] for name in ("image", "imagePullPolicy", "resources", "securityContext")}
    return [{"name": "references", "args": ["--version"], "env": variables, **same}]


def _entries(router: Router) -> list[_Entry]:
    found = []
    if router.auth is not None and router.auth.api_keys_secret_ref is not None:
        found.append(_Entry(router.auth.api_keys_secret_ref.name, names.ROUTER_KEYS_FILE))
    if router.auth is not None and router.auth.salt_secret_ref is not None:
        found.append(_Entry(router.auth.salt_secret_ref.name, names.ROUTER_SALT_FILE))
    if router.tls_secret_ref is not None:
        name = router.tls_secret_ref.name
        found += [_Entry(name, names.ROUTER_CERT_FILE), _Entry(name, names.ROUTER_KEY_FILE)]
    return found
