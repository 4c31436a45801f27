"""The account of a demo that a person reads: which pods, what moved between them, how long it took, what to try next.

Boundary: pure text from what was measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.scenarios.engine_metrics import EXTERNAL, LOCAL_CACHE, LOCAL_COMPUTE, PROMPT_TOKENS, PULLED_BYTES, Reading
from pdpool_api.names import Role, child_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from e2e.demo.talk import Answered
    from e2e.scenarios.pools import PodView, Pool

ANSWER_WIDTH = 90
OVERHEAD_GOAL_S = 5.0


@dataclass(frozen=True)
class Measured:
    """Everything that the account tells."""

    pods: Sequence[PodView]
    before: Mapping[str, Reading]
    after: Mapping[str, Reading]
    """Metrics of each engine pod, by its name, before the first and after the last request."""
    streams: Sequence[Answered]
    chat: Answered
    service_url: str
    apply_to_ready_s: float
    own_start_s: float | None
    """What the engine that answered last took for itself, from its container's start."""
    overhead_s: float | None
    """None where it was not measured: the pool was there already."""


def told(measured: Measured) -> str:
    """The account."""
    return "\n".join([*_pods(measured), "", *_moved(measured), "", *_times(measured)])


def _pods(measured: Measured) -> list[str]:
    return ["Pods", *(f"  {pod.role:<8} {pod.name:<44} {pod.ip:<15} {pod.state}" for pod in measured.pods)]


def _moved(measured: Measured) -> list[str]:
    sources = ", ".join(f"{pod.name} ({pod.ip})" for pod in measured.pods if pod.role == Role.PREFILL)
    lines = ["KV cache"]
    for pod in measured.pods:
        if pod.name not in measured.before or pod.name not in measured.after:
            continue
        before, after = measured.before[pod.name], measured.after[pod.name]
        computed, cached, pulled = (
            after.grown(before, PROMPT_TOKENS, source=source) for source in (LOCAL_COMPUTE, LOCAL_CACHE, EXTERNAL)
        )
        if pod.role == Role.DECODE:
            moved_bytes = after.grown(before, PULLED_BYTES)
            lines.append(f"  {moved_bytes:,.0f} bytes moved by NIXL from {sources} to {pod.name} ({pod.ip})")
        lines.append(
            f"  {pod.role}: prompt tokens computed {computed:.0f}, held in its cache {cached:.0f}, pulled {pulled:.0f}"
        )
    return lines


def _times(measured: Measured) -> list[str]:
    prompt = measured.chat.prompt_tokens
    ttft = ", then ".join(f"{1000 * each.ttft_s:.0f} ms" for each in measured.streams if each.ttft_s is not None)
    lines = [
        f"Answers (a model of random weights: the words mean nothing; {prompt} prompt tokens each)",
        f"  chat:   {measured.chat.text[:ANSWER_WIDTH]!r} in {1000 * measured.chat.took_s:.0f} ms",
        f"  stream: {measured.streams[-1].text[:ANSWER_WIDTH]!r}",
        f"  time to first token (TTFT): {ttft}",
    ]
    if measured.overhead_s is not None and measured.own_start_s is not None:
        lines += [
            "Start",
            f"  apply to Ready {measured.apply_to_ready_s:.1f} s; the engine's own start {measured.own_start_s:.1f} s",
            f"  overhead (apply to first token, less the engine's own start): {measured.overhead_s:.1f} s",
            f"  (goal: at most {OVERHEAD_GOAL_S:.0f} s; the container's start is known to the second)",
        ]
    return lines


def next_steps(kubectl: str, kubeconfig: Path, pool: Pool, *, url: str, model: str) -> str:
    """Commands to paste, each with what it shows."""
    at = f"-n {pool.namespace}"
    message = '"messages": [{"role": "user", "content": "hello"}]'
    body = f'{{"model": "{model}", {message}, "max_tokens": 16, "stream": true}}'
    change = '{"spec": {"decode": {"replicas": 2}}}'
    programs = ":".join(dict.fromkeys(str(Path(each).parent) for each in (kubectl, sys.executable)))
    said = [
        (f"export KUBECONFIG={kubeconfig} PATH={programs}:$PATH", "this cluster; kubectl and pdpool"),
        (f"kubectl get pdp {at}; kubectl get pods {at} -l {pool.labels}", "the pool, and what it became"),
        (f"pdpool status {pool.name} {at}", "the same in words"),
        ("kubectl explain pdp.spec.decode", "every field"),
        (f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'", "a stream"),
        (f"kubectl patch pdp {pool.name} {at} --type=merge -p '{change}'", "a second decode replica"),
        (f"kubectl get pdp {pool.name} {at} --watch", "until DECODE is 2/2; Ctrl-C ends it"),
        (
            f"kubectl port-forward {at} deployment/{child_name(pool.name, Role.ROUTER)} 9090:9090",
            "a page: http://127.0.0.1:9090/",
        ),
        ("make demo-down", "removes what the demo made"),
    ]
    return "\n".join(["Try next", *(f"  {command}   # {what}" for command, what in said)])
