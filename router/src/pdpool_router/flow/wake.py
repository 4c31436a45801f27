"""PURE: whether requests are held because the pool is at zero or wakes, rather than refused because it is broken.

Boundary: the state from one look to the next; what holding means is `admission`, who looks is `assembly`. A pool sleeps
from the moment that it has no engine pod, and wakes until a request can be served. A pod that is replaced leaves no
pod for a moment too: when one is back within `REPLACED_S`, which no operator that first has to see a waiting request
can do, the pool was not at zero. Between a container's start and its readiness a pod looks like a broken one, so that
a waking pool counts as broken only when that has lasted for `GRACE_S`.
"""

from __future__ import annotations

from typing import Final

from pdpool_router.records import Life

REPLACED_S: Final = 1.0
GRACE_S: Final = 10.0


class Wake:
    """Remembers whether the pool sleeps or wakes."""

    __slots__ = ("_rising_s", "_zero_s", "asleep")

    def __init__(self) -> None:
        self.asleep = False
        self._zero_s = 0.0
        self._rising_s = 0.0

    def look(self, life: Life, *, serves: bool, now_s: float) -> bool:
        """One look at the pool; returns `asleep`.

        Args:
            life: what its pods say.
            serves: a request could be served now.
            now_s: monotonic seconds.
        """
        if life is not Life.STARTED:
            self._rising_s = now_s
        if serves:
            self.asleep = False
        elif life is Life.ABSENT:
            if not self.asleep:
                self._zero_s = now_s
            self.asleep = True
        elif now_s - self._zero_s < REPLACED_S or now_s - self._rising_s > GRACE_S:
            self.asleep = False
        return self.asleep
