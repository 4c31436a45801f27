"""First guesses of speeds, from the configuration, until the router has seen how fast its engines are.

Boundary: pure arithmetic on figures of the configuration and of hardware profiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.hardware import profiles
from pdpool_api.names import Role
from pdpool_router.state.loads import Guess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.router_config import RouterConfig, Speeds

KV_BYTES_PER_TOKEN: Final = 131_072
"""Of an 8 B model with grouped heads in 16 bits; only for the first guess of a transfer."""


def guesses(speeds: Speeds) -> Mapping[Role, Guess]:
    """By role; what the configuration leaves open is as the defaults of `Guess`."""
    plain = Guess()
    rate = speeds.prefill.tokens_per_second
    link = speeds.transfer.bytes_per_second
    guess = Guess(
        token_ms=1000 / rate if rate else plain.token_ms,
        pull_ms=1000 * KV_BYTES_PER_TOKEN / link if link else plain.pull_ms,
        step_ms=speeds.decode.step_milliseconds or plain.step_ms,
    )
    return dict.fromkeys((Role.PREFILL, Role.DECODE, Role.AGGREGATED), guess)


def slower(config: RouterConfig) -> Mapping[str, float]:
    """By name of a hardware profile: how much slower it computes than the fastest that the configuration names."""
    shipped = profiles()
    named = {entry.hardware for entry in config.endpoints.static if entry.hardware}
    tflops = {name: shipped[name].dense_tflops for name in named}
    known = {name: each.bf16 for name, each in tflops.items() if each is not None}
    return {name: max(known.values()) / each for name, each in known.items()}
