"""How fast an endpoint is, learned from what the router sees: a line through times and sizes, robust and forgetful.

Boundary: pure arithmetic. A time is a fixed part and a part for each token; both come from decayed least squares. An
outlier moves the line by a few times the usual error at most, and a lasting change is followed within some tens of
observations, since the usual error grows with it. A new line begins as its guess, with the weight of a few
observations.
"""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.98
"""What an observation still counts after the next one: about fifty count."""
GUESS_WEIGHT: Final = 8.0
_TYPICAL_TOKENS: Final = 1000.0
_TOLERANCE: Final = 3.0
_LEAST_TOKEN_MS: Final = 1e-6


class Line:
    """Milliseconds as a fixed part and a part per token."""

    __slots__ = ("_error_ms", "_n", "_sx", "_sxx", "_sxy", "_sy", "fixed_ms", "token_ms")

    def __init__(self, fixed_ms: float, token_ms: float) -> None:
        self.fixed_ms = fixed_ms
        self.token_ms = max(token_ms, _LEAST_TOKEN_MS)
        # The guess, as observations at 0 and at twice a typical prompt.
        half = GUESS_WEIGHT / 2
        far = 2 * _TYPICAL_TOKENS
        far_ms = fixed_ms + far * self.token_ms
        self._n = GUESS_WEIGHT
        self._sx = half * far
        self._sxx = half * far * far
        self._sy = half * (fixed_ms + far_ms)
        self._sxy = half * far * far_ms
        self._error_ms = far_ms

    def predict_ms(self, tokens: float) -> float:
        """The time of so many tokens."""
        return self.fixed_ms + tokens * self.token_ms

    def observe(self, tokens: float, took_ms: float) -> None:
        """So many tokens took so long."""
        predicted = self.fixed_ms + tokens * self.token_ms
        bound = _TOLERANCE * self._error_ms
        residual = min(max(took_ms - predicted, -bound), bound)
        self._error_ms = max(0.9 * self._error_ms + 0.1 * abs(residual), 0.01 * predicted, 1e-3)
        value = max(predicted + residual, 0.0)
        self._n = MEMORY * self._n + 1
        self._sx = MEMORY * self._sx + tokens
        self._sy = MEMORY * self._sy + value
        self._sxx = MEMORY * self._sxx + tokens * tokens
        self._sxy = MEMORY * self._sxy + tokens * value
        self._solve()

    def _solve(self) -> None:
        spread = self._n * self._sxx - self._sx * self._sx
        if spread > 1e-6 * self._n * self._sxx and self._sxx > 0:
            token_ms = (self._n * self._sxy - self._sx * self._sy) / spread
        else:
            token_ms = self.token_ms
        token_ms = max(token_ms, _LEAST_TOKEN_MS)
        fixed_ms = (self._sy - token_ms * self._sx) / self._n
        if fixed_ms < 0:
            fixed_ms = 0.0
            token_ms = max(self._sxy / self._sxx, _LEAST_TOKEN_MS) if self._sxx > 0 else token_ms
        self.fixed_ms, self.token_ms = fixed_ms, token_ms


class Level:
    """A quantity without a size, decayed and robust in the same way."""

    __slots__ = ("_error", "_n", "guess", "seen", "value")

    def __init__(self, guess: float, *, error: float = 1.0) -> None:
        """`error`: how far off the guess may usually be, as a share of it."""
        self.value = self.guess = guess
        self.seen = 0
        """Observations so far."""
        self._n = GUESS_WEIGHT
        self._error = error * guess

    def observe(self, value: float) -> None:
        """It was so much."""
        self.seen += 1
        bound = _TOLERANCE * self._error
        residual = min(max(value - self.value, -bound), bound)
        self._error = max(0.9 * self._error + 0.1 * abs(residual), 0.01 * self.value, 1e-6)
        self._n = MEMORY * self._n + 1
        self.value = max(self.value + residual / self._n, 0.0)
