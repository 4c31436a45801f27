"""A stand-in for NVIDIA's DCGM exporter: the real one's series and labels, with values that a test gives.

Boundary: a page; there is no GPU behind it. Names and labels are those of
dcgm-exporter 4.x with its default counters and Kubernetes mapping on (`pod`, `namespace`, `container`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Pods = Mapping[tuple[str, str], float]
"""Namespace and name of a pod → how busy its GPU is, 0 to 1."""

FAMILIES: Final = {
    "DCGM_FI_DEV_GPU_UTIL": 100.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 1.0,
    "DCGM_FI_PROF_DRAM_ACTIVE": 1.0,
}
"""Gauges, and what stands for all of a GPU."""


def page(pods: Pods) -> bytes:
    """What the exporter of a node says: one GPU per pod."""
    lines: list[str] = []
    for family, whole in FAMILIES.items():
        lines += [f"# HELP {family} As DCGM's, served by a stand-in.", f"# TYPE {family} gauge"]
        for gpu, ((namespace, pod), busy) in enumerate(sorted(pods.items())):
            labels = {
                "gpu": gpu,
                "UUID": f"GPU-00000000-0000-0000-0000-{gpu:012d}",
                "pci_bus_id": f"00000000:{gpu:02X}:00.0",
                "device": f"nvidia{gpu}",
                "modelName": "NVIDIA H100 80GB HBM3",
                "Hostname": "node",
                "DCGM_FI_DRIVER_VERSION": "580.65.06",
                "container": "engine",
                "namespace": namespace,
                "pod": pod,
            }
            told = ",".join(f'{name}="{value}"' for name, value in labels.items())
            lines.append(f"{family}{{{told}}} {busy * whole}")
    return ("\n".join(lines) + "\n").encode()
