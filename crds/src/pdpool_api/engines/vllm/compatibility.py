"""What prefill and decode must share, read from everything that can say it: fields, arguments, variables, profiles.

Boundary: pure. The revision is a hash of it, so that a change rolls both roles together; a disagreement between the
roles is found before a pod is made. What nobody sets is absent here: the engine decides, alike on both sides.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import hardware, models
from pdpool_api.engines.vllm import flags
from pdpool_api.engines.vllm.arguments import transfer_config
from pdpool_api.engines.vllm.attention import ATTENTION_BACKEND, choices, given_backend, own_choice, pinned_backend
from pdpool_api.engines.vllm.environment import environment
from pdpool_api.engines.vllm.parallelism import parallelism
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdpool_api.pool import InferencePoolSpec

REVISION_LENGTH: Final = 8

_SETTINGS: Final = (
    "--attention-backend",
    "--block-size",
    "--disable-hybrid-kv-cache-manager",
    "--dtype",
    "--kv-cache-dtype",
    "--mamba-block-size",
    "--mamba-cache-dtype",
    "--mamba-cache-mode",
    "--mamba-ssm-cache-dtype",
    "--revision",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
)
_SWITCHES: Final = frozenset({"--disable-hybrid-kv-cache-manager"})
_VARIABLES: Final = (
    "VLLM_ATTENTION_BACKEND",  # only engines older than the supported ones read it: an image of one's own may
    "VLLM_KV_CACHE_LAYOUT",
    "VLLM_SSM_CONV_STATE_LAYOUT",
)
_OWN_TRANSFER_FIELDS: Final = frozenset({"kv_role", "kv_load_failure_policy", "engine_id"})
_OWN_TRANSFER_EXTRAS: Final = frozenset({"kv_lease_duration"})
"""Fields of the transfer configuration in which the roles may differ."""
_NO_COMMON_BACKEND: Final = "attention backend"
_USUAL_BACKEND: Final = "FLASH_ATTN"
"""What the engine chooses by itself on most hardware."""
_SYNONYMS: Final = {
    ("--dtype", "half"): "float16",
    ("--dtype", "float"): "float32",
    ("--kv-cache-dtype", "fp8"): "fp8_e4m3",
}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Something that prefill and decode must share and do not."""

    setting: str
    prefill: Any
    decode: Any
    rule: str = "must be equal"
    prefill_by: str = ""
    """What chose the value of prefill, where its author did not."""
    decode_by: str = ""

    @property
    def message(self) -> str:
        """For a person: the setting, both values, the rule."""
        values = (
            f"{role} has {_shown(value)}{f' (of {by})' if by else ''}"
            for role, value, by in (("prefill", self.prefill, self.prefill_by), ("decode", self.decode, self.decode_by))
        )
        return f"{self.setting} {self.rule}: {', '.join(values)}"


def shared_settings(spec: InferencePoolSpec) -> dict[str, Any]:
    """What the revision hashes: JSON values, only those that something sets.

    Raises:
        ArgumentError: a JSON argument is no JSON object.
    """
    adapters = {each.name: each.source for each in spec.model.adapters}
    of_roles = {role: settings(spec, role) for role in spec.roles}
    return {
        "model": spec.model.id,
        "image": spec.engine.image,
        "servedNames": list(spec.model.names),
        **({"adapters": adapters} if adapters else {}),
        "roles": {role.value: each for role, each in of_roles.items()},
        **_bound(spec, of_roles),
    }


def _bound(spec: InferencePoolSpec, of_roles: Mapping[Role, Mapping[str, Any]]) -> dict[str, Any]:
    """What else must be of one revision, because a replica from before an edit would not suit one from after it.

    Within a revision each role is replaced by itself, so that for a while the old of one works with the new of the
    other. That the roles of each spec suit each other is not enough for these; most pools have none of them.
    """
    if not spec.disaggregated:
        return {}
    chosen = {role: choices(spec, role)[:1] for role, each in of_roles.items() if ATTENTION_BACKEND not in each}
    backends = {role.value: each[0] for role, each in chosen.items() if each and each[0] != _USUAL_BACKEND}
    sizes = {role: parallelism(spec, role).tensor for role in spec.roles}
    heads = models.facts(spec.model).kv_heads
    block_sizes = {each.get("--block-size") for each in of_roles.values()}
    # Powers of two divide one another.
    is_free = all(size.bit_count() == 1 for size in sizes.values()) and len(block_sizes) == 1
    is_free = is_free and (heads is None or sizes[Role.PREFILL] <= heads)
    return {
        **({"backends": backends} if backends else {}),
        **({} if is_free else {"tensor": {role.value: size for role, size in sizes.items()}}),
    }


def revision(spec: InferencePoolSpec) -> str:
    """Hash of `shared_settings`, as label value and part of names.

    Raises:
        ArgumentError: see `shared_settings`.
    """
    text = json.dumps(shared_settings(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_LENGTH]


def settings(spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
    """The settings of one role that the other must share, by flag or variable.

    Raises:
        ArgumentError: a JSON argument is no JSON object.
    """
    found = flags.given_flags(spec, role)
    profile = hardware.profile(spec.role(role).hardware).settings(spec.engine.name, role)
    result: dict[str, Any] = {flag: profile.args[flag] for flag in _SETTINGS if flag in profile.args}
    if spec.model.revision:
        result["--revision"] = spec.model.revision
    result[ATTENTION_BACKEND] = flags.json_value(found, "--attention-config").get("backend") or pinned_backend(spec)
    for each in found:
        if each.flag in _SWITCHES:
            result[each.flag] = not each.negated
        elif each.flag in _SETTINGS:
            result[each.flag] = each.value
    speculative = flags.json_value(found, "--speculative-config")
    if speculative:
        result["--speculative-config"] = speculative
    if role is not Role.AGGREGATED:
        result["connector"] = _connector(spec, role)
    for variable in environment(spec, role):
        if variable["name"] in _VARIABLES:
            result[variable["name"]] = variable.get("value", variable.get("valueFrom"))
    normal = {name: _normal(name, value) for name, value in result.items()}
    return {name: value for name, value in normal.items() if value is not None}


def disagreements(spec: InferencePoolSpec) -> tuple[Disagreement, ...]:
    """Everything in which the spec lets prefill and decode differ though they must not; one role agrees with itself.

    Raises:
        ArgumentError: a JSON argument is no JSON object, or see `parallelism`.
    """
    if not spec.disaggregated:
        return ()
    of_prefill, of_decode = settings(spec, Role.PREFILL), settings(spec, Role.DECODE)
    prefill = _with_backend(of_prefill, of_decode, choices(spec, Role.PREFILL))
    decode = _with_backend(of_decode, of_prefill, choices(spec, Role.DECODE))
    names = sorted(prefill.keys() | decode.keys())
    found = [
        Disagreement(name, prefill.get(name), decode.get(name))
        for name in names
        if name != "--block-size" and prefill.get(name) != decode.get(name)
    ]
    every = (
        *found,
        *_block_size(spec, prefill.get("--block-size"), decode.get("--block-size")),
        *_sizes(spec),
        *_hardware(spec),
    )
    return tuple(_with_sources(spec, each) for each in every)


def _with_sources(spec: InferencePoolSpec, found: Disagreement) -> Disagreement:
    """Names the profile where it, and not the author, gave a value: nothing in the spec shows that."""
    by = [
        f"hardware profile {spec.role(role).hardware}"
        if value is not None and _is_of_profile(spec, role, found.setting)
        else ""
        for role, value in ((Role.PREFILL, found.prefill), (Role.DECODE, found.decode))
    ]
    return replace(found, prefill_by=by[0], decode_by=by[1])


def _is_of_profile(spec: InferencePoolSpec, role: Role, setting: str) -> bool:
    if spec.role(role).hardware is None:
        return False
    if setting == _NO_COMMON_BACKEND:
        return True
    given = flags.given_flags(spec, role)
    if setting == ATTENTION_BACKEND:
        return given_backend(given) is None
    of_profile = hardware.profile(spec.role(role).hardware).settings(spec.engine.name, role).args
    return setting in of_profile and all(each.flag != setting for each in given)


def _with_backend(found: dict[str, Any], other: dict[str, Any], by_itself: Sequence[str]) -> dict[str, Any]:
    """The settings of a role, and the backend that its hardware chooses where only the other role names one."""
    if ATTENTION_BACKEND in other and ATTENTION_BACKEND not in found and by_itself:
        return {**found, ATTENTION_BACKEND: by_itself[0]}
    return found


def _sizes(spec: InferencePoolSpec) -> Iterator[Disagreement]:
    """Tensor and pipeline sizes, also those that arguments give."""
    prefill, decode = parallelism(spec, Role.PREFILL), parallelism(spec, Role.DECODE)
    if prefill.tensor % decode.tensor and decode.tensor % prefill.tensor:
        rule = "of the roles must divide one another"
        yield Disagreement("--tensor-parallel-size", prefill.tensor, decode.tensor, rule)
    heads = models.facts(spec.model).kv_heads
    if prefill.tensor > decode.tensor and heads is not None and prefill.tensor > heads:
        rule = f"of prefill, where it is the larger, must not exceed the model's KV heads ({heads})"
        yield Disagreement("--tensor-parallel-size", prefill.tensor, decode.tensor, rule)
    if decode.pipeline != 1:
        rule = "of decode must be 1"
        yield Disagreement("--pipeline-parallel-size", prefill.pipeline, decode.pipeline, rule)


def _hardware(spec: InferencePoolSpec) -> Iterator[Disagreement]:
    """Two kinds of hardware on which no attention backend is the same."""
    prefill = own_choice(spec, Role.PREFILL)
    if prefill is not None:
        rule = "of the hardware profiles must be equal, and no backend runs on both"
        yield Disagreement(_NO_COMMON_BACKEND, prefill, own_choice(spec, Role.DECODE), rule)


def _block_size(spec: InferencePoolSpec, prefill: Any, decode: Any) -> tuple[Disagreement, ...]:
    if prefill == decode:
        return ()
    if parallelism(spec, Role.PREFILL).tensor > parallelism(spec, Role.DECODE).tensor:
        rule = "must be equal where prefill's tensor size is the larger"
    elif _is_multiple(decode, prefill):
        return ()
    else:
        rule = "of decode must be a multiple of prefill's"
    return (Disagreement("--block-size", prefill, decode, rule),)


def _is_multiple(value: Any, base: Any) -> bool:
    return isinstance(value, int) and isinstance(base, int) and base > 0 and value % base == 0


def _connector(spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
    config = transfer_config(spec, role)
    extras = config.get("kv_connector_extra_config")
    shared = {name: value for name, value in config.items() if name not in _OWN_TRANSFER_FIELDS}
    if isinstance(extras, dict):
        shared["kv_connector_extra_config"] = {
            name: value for name, value in extras.items() if name not in _OWN_TRANSFER_EXTRAS
        }
    return shared


def _normal(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "--attention-backend":
        return value.upper()
    if value == "auto" and name != "--revision":
        return None  # what the engine does by itself
    if value.isdecimal():
        return int(value)
    return _SYNONYMS.get((name, value), value)


def _shown(value: Any) -> str:
    return "the engine's default" if value is None else json.dumps(value, sort_keys=True)
