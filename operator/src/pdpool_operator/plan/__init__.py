"""Arithmetic about hardware and models: whether a spec can run at all, and what mode Auto decides.

Boundary: pure; from a spec with resolved images to a refusal, a remark, or a mode.
"""

from pdpool_operator.plan.fit import refusals, unchecked
from pdpool_operator.plan.mode import Decision, decided, inputs

__all__ = ["Decision", "decided", "inputs", "refusals", "unchecked"]
