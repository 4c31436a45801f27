"""The table of exchanges: what is said to an engine and what must come back, from real vLLM and from the stand-in.

Boundary: requests and checks against URLs; which engines are behind them is the caller's business
(`tests/engine/test_exchanges.py`). Each row is a function in `EXCHANGES`; it gets a pair of engines that hand KV over
and raises AssertionError where an answer is not vLLM 0.32's. `REFUSALS` is a table of values. Rows in `LAST` end their
engine, so they run last, in order.
"""

# Imported for their rows.
from e2e.engine.exchanges import endings, events, faults, legs, routes
from e2e.engine.exchanges.parts import EXCHANGES, LAST, Pair, Target
from e2e.engine.exchanges.refusals import REFUSALS, Refusal, check_refusal

ROWS = (legs, faults, routes, events, endings)

__all__ = ["EXCHANGES", "LAST", "REFUSALS", "ROWS", "Pair", "Refusal", "Target", "check_refusal"]
