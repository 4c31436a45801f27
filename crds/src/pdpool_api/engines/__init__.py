"""Engines: everything that differs between engines, one package each; nothing else names an engine.

Boundary: `engine` finds the package of `spec.engine.name`; `Engine` is what the operator asks of one. The router's side
(bodies of the two legs, metric names) is in modules of the same package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from pdpool_api.engines import vllm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec, Parallelism


class Disagreement(Protocol):
    """Something that prefill and decode must share and do not."""

    @property
    def message(self) -> str:
        """For a person: the setting, both values, the rule."""


class Engine(Protocol):
    """An engine as the operator knows it. Each function is pure and takes a spec whose images are resolved."""

    def arguments(self, spec: InferencePoolSpec, role: Role) -> list[str]:
        """What follows the entry point in a pod of a role."""

    def environment(self, spec: InferencePoolSpec, role: Role) -> list[dict[str, Any]]:
        """EnvVar objects."""

    def parallelism(self, spec: InferencePoolSpec, role: Role) -> Parallelism:
        """How the engine of a role is spread over accelerators, arguments counted."""

    def ports(self, spec: InferencePoolSpec, role: Role) -> list[dict[str, Any]]:
        """ContainerPort objects."""

    def probes(self, spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
        """The three probes by their field names."""

    def pre_stop(self, spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
        """The preStop handler."""

    def termination_grace_seconds(self, spec: InferencePoolSpec, role: Role) -> int:
        """`terminationGracePeriodSeconds`."""

    def revision(self, spec: InferencePoolSpec) -> str:
        """Hash of what prefill and decode must share."""

    def reserved_arguments(self, spec: InferencePoolSpec) -> Sequence[str]:
        """What is wrong with arguments that only the operator may set."""

    def unsupported_version(self, spec: InferencePoolSpec) -> str | None:
        """Why the engine's version cannot be run."""

    def advice(self, spec: InferencePoolSpec) -> Sequence[str]:
        """What is worth knowing of the settings, and blocks nothing."""

    def disagreements(self, spec: InferencePoolSpec) -> Sequence[Disagreement]:
        """In what prefill and decode differ though they must not."""


_BY_NAME: Final[dict[str, Engine]] = {"VLLM": vllm}


def engine(spec: InferencePoolSpec) -> Engine:
    """The engine that a pool runs."""
    return _BY_NAME[spec.engine.name]
