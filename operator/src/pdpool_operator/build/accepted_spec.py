"""The spec that was last accepted, kept as a ControllerRevision of the pool: what goes on when an edit is refused.

Boundary: pure. The API server lets nobody change the content of a ControllerRevision, so that the hash in its name says
all of it: another spec is another object, and the one before is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_operator import ownership
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import CONTROLLER_REVISIONS, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool
    from pdpool_operator.records import Json

_SPEC: Final = "spec"
_HASH_LENGTH: Final = 8


def accepted_spec(pool: InferencePool, spec: Json) -> Child:
    """The record of a pool's spec as its author wrote it."""
    body = {
        "apiVersion": CONTROLLER_REVISIONS.api_version,
        "kind": CONTROLLER_REVISIONS.kind,
        "metadata": metadata(pool, Role.ROUTER, _SPEC, ownership.digest(spec)[:_HASH_LENGTH]),
        "revision": 1,
        "data": {_SPEC: spec},
    }
    return Child(CONTROLLER_REVISIONS, body)


def spec_of(record: Json) -> Json:
    """The spec that a record holds; empty: none."""
    found: Json = (record.get("data") or {}).get(_SPEC) or {}
    return found
