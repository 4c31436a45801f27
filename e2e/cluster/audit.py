"""Reading the API server's audit log: who wrote what between two moments.

Boundary: the file of one cluster; the policy that decides what gets into it is in `control_plane.py`.
A moment is an offset into the file rather than a time: the API server writes each line before it answers the request,
so whatever a test has seen answered lies before the offset it takes next.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NewType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Moment = NewType("Moment", int)

WRITING_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})
SUCCESS = range(200, 300)


@dataclass(frozen=True)
class AuditEntry:
    """One answered request. `resource` carries the subresource (`pods/status`); `group` is empty for the core group."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    user_agent: str
    status_code: int
    time: str

    @property
    def is_write(self) -> bool:
        """Whether it asked for a change."""
        return self.verb in WRITING_VERBS

    @property
    def succeeded(self) -> bool:
        """Whether it was granted."""
        return self.status_code in SUCCESS


class AuditLog:
    """The audit log of one cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def now(self) -> Moment:
        """This moment: what is answered from now on comes after it."""
        return Moment(self.path.stat().st_size if self.path.exists() else 0)

    def entries(self, since: Moment = Moment(0), until: Moment | None = None) -> Iterator[AuditEntry]:
        """Entries between two moments in the order of their answers; dry runs and unfinished watches are left out."""
        if not self.path.exists():
            return
        end = self.now() if until is None else until
        with self.path.open("rb") as stream:
            stream.seek(since)
            for line in stream.read(end - since).splitlines():
                event = _parsed(line)
                if (
                    event is not None
                    and event.get("stage") == "ResponseComplete"
                    and "dryRun=" not in event["requestURI"]
                ):
                    yield _entry(event)

    def writes(
        self,
        since: Moment = Moment(0),
        until: Moment | None = None,
        *,
        user: str | None = None,
        ignored: frozenset[str] = frozenset({"events", "leases"}),
    ) -> Counter[tuple[str, str]]:
        """How many changes each user was granted, by `(user, resource)`, without those to `ignored` resources."""
        return Counter(
            (entry.user, entry.resource)
            for entry in self.entries(since, until)
            if entry.is_write
            and entry.succeeded
            and entry.resource not in ignored
            and (user is None or entry.user == user)
        )


def service_account_user(namespace: str, name: str) -> str:
    """The user name under which a service account appears."""
    return f"system:serviceaccount:{namespace}:{name}"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None  # a line still being written
    return event if isinstance(event, dict) else None


def _entry(event: dict[str, Any]) -> AuditEntry:
    target = event.get("objectRef", {})
    resource, subresource = target.get("resource", ""), target.get("subresource", "")
    return AuditEntry(
        user=event["user"]["username"],
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user_agent=event.get("userAgent", ""),
        status_code=event.get("responseStatus", {}).get("code", 0),
        time=event["stageTimestamp"],
    )
