"""`python -m e2e.demo up | down`: see `make demo`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from e2e.cluster.progress import ClusterError
from e2e.demo import account, run
from e2e.demo.options import Options, parsed
from e2e.demo.view import View
from e2e.scenarios import diagnosis, product
from e2e.scenarios.api import ApiError
from e2e.scenarios.pools import LateError, Pool

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the account goes to stdout, progress to stderr."""
    options = parsed(arguments)
    try:
        if options.command == "down":
            run.remove(options)
            return 0
        return _up(options)
    except KeyboardInterrupt:
        print("interrupted; what was made stays: run it again, or `make demo-down`", file=sys.stderr)
        return 130
    except (ClusterError, ApiError, LateError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _up(options: Options) -> int:
    if not options.own_cluster:
        print(run.assumptions(options), file=sys.stderr)
    place: run.Place | None = None
    with View(run.step_names(options)) as view:
        try:
            place = run.prepare(options, view)
            run.install_product(options, view, place)
            measured = run.serve(options, view, place)
        except Exception as error:  # noqa: BLE001 - whatever failed, a person needs to know where to look
            failure: Exception | None = error
        else:
            failure = None
        elapsed_s = view.elapsed_s
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
        if place is not None:
            print(_where_to_look(options, place), file=sys.stderr)
        return 1
    assert place is not None
    wanted = run.sample(options)
    pool = Pool(place.api, wanted["metadata"]["name"], options.namespace)
    model, url = run.served_name(wanted), measured.service_url
    print(f"\n{account.told(measured)}\n")
    print(account.next_steps(place.kubectl, place.api.kubeconfig, pool, url=url, model=model))
    print(f"\nAll in {elapsed_s:.0f} s.")
    return 0


def _where_to_look(options: Options, place: run.Place) -> str:
    namespace, _ = product.operator_place()
    lines = [diagnosis.report(place.api, [options.namespace, namespace])]
    if place.logs is not None:
        lines.append(f"logs of the cluster's own programs: {place.logs}")
    lines.append(f"look further: {place.kubectl} --kubeconfig {place.api.kubeconfig} get pdp,pods,events -A")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
