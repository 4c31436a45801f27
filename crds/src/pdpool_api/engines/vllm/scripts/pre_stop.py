"""preStop hook, run by the image's python3 as `pre_stop.py PORT MIN_S MAX_S GAUGE…`.

Waits at least MIN_S and at most MAX_S seconds until every GAUGE of the engine is there and 0. A gauge that is absent is
unknown, not 0. An engine that refuses connections is gone and has nothing to finish.
"""

import http.client
import sys
import time

PORT, MIN_S, MAX_S, GAUGES = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]


def idle() -> bool:
    """Whether the engine has nothing left to do."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=4)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return all(is_zero(lines, gauge) for gauge in GAUGES)
    except ConnectionRefusedError:
        return True
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def is_zero(lines: "list[str]", gauge: str) -> bool:
    """Whether a gauge has samples (one for each rank) and all of them are 0."""
    samples = [float(line.split()[-1]) for line in lines if line.startswith((gauge + "{", gauge + " "))]
    return bool(samples) and not any(samples)


start = time.monotonic()
while (waited_s := time.monotonic() - start) < MAX_S and not (waited_s >= MIN_S and idle()):
    time.sleep(0.5)
