"""Scaling rules to compare with, as their authors document them: the rule, not the product.

Boundary: one class a rule, sums over a role. A rule that cannot read anything keeps its sizes.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_sim.scaling.replicas import Replicas
    from pdpool_sim.scaling.scaler import Bounds, Scaler, Seen

QUEUE_TARGET: Final = 4.0
TOLERANCE: Final = 0.1
DOWN_WINDOW_S: Final = 300.0


def kept(seen: Seen) -> tuple[int, int]:
    """The sizes as they are."""
    return seen.prefill.wanted, seen.decode.wanted


class QueueHpa:
    """A horizontal pod autoscaler on waiting requests: ceil(n x mean / target), 300 s before shrinking."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        del bounds
        self._asked: dict[str, deque[tuple[float, int]]] = {"prefill": deque(), "decode": deque()}

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        if seen.flows is None:
            return kept(seen)
        return (
            self._size("prefill", seen.prefill, seen.flows.prefill_waiting, seen.now),
            self._size("decode", seen.decode, seen.flows.decode_waiting, seen.now),
        )

    def _size(self, role: str, replicas: Replicas, waiting: float, now: float) -> int:
        size, ready = replicas.wanted, max(1, len(replicas.ready))
        ratio = waiting / ready / QUEUE_TARGET
        wanted = size if abs(ratio - 1) <= TOLERANCE else math.ceil(ready * ratio)
        asked = self._asked[role]
        asked.append((now, wanted))
        while asked[0][0] < now - DOWN_WINDOW_S:
            asked.popleft()
        if wanted > size:
            return min(wanted, max(2 * size, size + 4))
        return min(size, max(each for _, each in asked))


class InflightMean:
    """Mean requests in flight over ten minutes, over a target (KubeAI)."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        self._seats = max(1.0, 0.7 * bounds.rates.max_seqs)
        self._prefill: deque[float] = deque(maxlen=40)
        self._decode: deque[float] = deque(maxlen=40)

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        self._prefill.append(flows.prefill_waiting + flows.prefill_busy * len(seen.prefill.ready))
        self._decode.append(flows.decode_running + flows.decode_waiting)
        mean = [sum(each) / len(each) for each in (self._prefill, self._decode)]
        return math.ceil(mean[0] / QUEUE_TARGET), math.ceil(mean[1] / self._seats)


class Thresholds:
    """Throughput thresholds, one step at a time (Dynamo's default): queued prompt tokens, KV; none while pods start."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        self._context = bounds.rates.context_tokens

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        prefill, decode = kept(seen)
        pending = bool(seen.prefill.starting or seen.decode.starting or seen.prefill.pending or seen.decode.pending)
        queued = flows.prefill_waiting * seen.prompt_tokens / max(1, len(seen.prefill.ready)) / self._context
        used = flows.kv_usage * (1 + flows.decode_waiting / max(1.0, flows.decode_running))
        return (
            _stepped(prefill, grow=queued >= 1.0 and not pending, shrink=queued < 0.1),  # noqa: PLR2004 - as documented
            _stepped(decode, grow=used > 1.0 and not pending, shrink=used < 0.6),  # noqa: PLR2004
        )


class SlaReactive:
    """One step by the SLA (Dynamo): up when TTFT (ITL) is above it, down when one fewer would keep 80 % of it."""

    interval_s = 5

    def __init__(self, bounds: Bounds) -> None:
        self._slo = bounds.slo

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        prefill, decode = kept(seen)
        fewer = [count / max(1, count - 1) for count in (prefill, decode)]
        # With one fewer, waiting grows as load / (1 - load) does.
        busy = min(0.99, flows.prefill_busy * fewer[0])
        ttft = flows.ttft_s * (1 - min(0.99, flows.prefill_busy)) / (1 - busy)
        return (
            _stepped(
                prefill,
                grow=flows.ttft_s > self._slo.ttft_s and not seen.prefill.starting,
                shrink=busy < 0.95 and ttft < 0.8 * self._slo.ttft_s,  # noqa: PLR2004
            ),
            _stepped(
                decode,
                grow=(flows.itl_s > self._slo.itl_s or flows.decode_waiting > 1) and not seen.decode.starting,
                shrink=flows.itl_s * fewer[1] < 0.8 * self._slo.itl_s and flows.kv_usage * fewer[1] < 1.0,
            ),
        )


class SlaPredictive:
    """A forecast of the rates over the capacity of a replica within the SLA, every 180 s (Dynamo)."""

    interval_s = 180

    def __init__(self, bounds: Bounds) -> None:
        self._rates = bounds.rates
        self._before: tuple[float, float] | None = None

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        now = flows.prompt_rate, flows.arrived * seen.output_tokens
        before = self._before or now
        self._before = now
        ahead = [max(0.0, 2 * each - old) for each, old in zip(now, before, strict=True)]
        wanted = ahead[0] / self._rates.prefill_tokens_s, ahead[1] / self._rates.decode_tokens_s
        return tuple(min(math.ceil(each), size + 8) for each, size in zip(wanted, kept(seen), strict=True))  # type: ignore[return-value]


class SaturationV1:
    """Spare KV and spare queue (WVA): +1 below 0.10 or 3; -1 when the rest would do; held while pods start."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        del bounds

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        return (
            self._size(seen.prefill, flows.prefill_busy * 0.8, flows.prefill_waiting),
            self._size(seen.decode, flows.kv_usage, flows.decode_waiting),
        )

    @staticmethod
    def _size(replicas: Replicas, usage: float, waiting: float) -> int:
        size, ready = replicas.wanted, max(1, len(replicas.ready))
        if replicas.starting or replicas.pending or replicas.leaving:
            return size
        queue = waiting / ready
        if 0.80 - usage < 0.10 or 5 - queue < 3:  # noqa: PLR2004 - as documented
            return size + 1
        more = ready / max(1, ready - 1)
        fits = usage * more < 0.70 and queue * more < 2  # noqa: PLR2004
        return size - 1 if ready >= 2 and fits else size  # noqa: PLR2004


class SaturationV2:
    """Tokens against capacity (WVA): up when demand / 0.85 exceeds supply, down when supply exceeds demand / 0.70."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        self._rates = bounds.rates

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        each = 0.80 * self._rates.kv_tokens
        context = seen.prompt_tokens + seen.output_tokens / 2
        busy = flows.prefill_busy * len(seen.prefill.ready) * each
        prefill = busy + flows.prefill_waiting * seen.prompt_tokens
        decode = flows.decode_running * context + flows.decode_waiting * (seen.prompt_tokens + seen.output_tokens)
        return self._size(seen.prefill, prefill, each), self._size(seen.decode, decode, each)

    @staticmethod
    def _size(replicas: Replicas, demand: float, each: float) -> int:
        size = replicas.wanted
        if demand / 0.85 > size * each:
            return math.ceil(demand / 0.85 / each)
        if size * each > demand / 0.70:
            return max(1, math.ceil(demand / 0.70 / each))
        return size


class DecodeRate:
    """Output tokens a second over a target per replica, prefill in a fixed ratio (HeteroScale)."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        self._rates, self._slo = bounds.rates, bounds.slo
        self._ratio: float | None = None
        self._cooled_s = 0.0

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        if self._ratio is None:  # fixed by the first load that was seen
            prefill = flows.prompt_rate / self._rates.prefill_tokens_s
            self._ratio = prefill / max(0.1, flows.arrived * seen.output_tokens / self._rates.decode_tokens_s)
        size = seen.decode.wanted
        wanted = math.ceil(flows.output_rate / (0.8 * self._rates.decode_tokens_s))
        if flows.ttft_s > self._slo.ttft_s or flows.itl_s > self._slo.itl_s:
            wanted = max(wanted, size) + 1
        elif abs(wanted - size) <= 0.1 * size or (wanted < size and seen.now < self._cooled_s):
            wanted = size
        if wanted != size:
            self._cooled_s = seen.now + DOWN_WINDOW_S
        return math.ceil(self._ratio * wanted), wanted


class TokenVelocity:
    """Input tokens a second over prefill's velocity, output tokens a second over decode's (TokenScale)."""

    interval_s = 15

    def __init__(self, bounds: Bounds) -> None:
        self._rates = bounds.rates

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        flows = seen.flows
        if flows is None:
            return kept(seen)
        return (
            math.ceil(flows.prompt_rate / self._rates.prefill_tokens_s),
            math.ceil(flows.output_rate / self._rates.decode_tokens_s),
        )


def _stepped(size: int, *, grow: bool, shrink: bool) -> int:
    if grow:
        return size + 1
    return size - 1 if shrink else size


RIVALS: Final[Mapping[str, Callable[[Bounds], Scaler]]] = {
    "queue HPA": QueueHpa,
    "in-flight mean": InflightMean,
    "thresholds": Thresholds,
    "SLA reactive": SlaReactive,
    "SLA predictive": SlaPredictive,
    "saturation v1": SaturationV1,
    "saturation v2": SaturationV2,
    "decode-rate ratio": DecodeRate,
    "token velocity": TokenVelocity,
}
"""By name; `docs/simulator.md` says whose rule each is."""
