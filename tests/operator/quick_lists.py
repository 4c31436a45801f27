"""The operator with a list every few seconds instead of every minute: what only lists tell is told sooner.

Boundary: one period, nothing else is changed. `python -m tests.operator.quick_lists` runs it.
"""

from __future__ import annotations

import sys
from typing import Final

from pdpool_operator import __main__ as operator
from pdpool_operator.observe import relist

PERIOD_S: Final = 5.0

if __name__ == "__main__":
    setattr(relist, "PERIOD_S", PERIOD_S)  # noqa: B010 - it is a constant of the product
    sys.exit(operator.main())
