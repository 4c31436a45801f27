"""`pdpool simulate`: a workload through routing rules on a pool that does not exist yet.

Boundary: options and printing. It needs no cluster and no accelerator.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import click

from pdpool_api import hardware
from pdpool_sim.contestants import CONTESTANTS, LEAST_LOADED, OWN
from pdpool_sim.experiment import Scene, Task, figures_at, limit, run_all
from pdpool_sim.generators import GENERATORS
from pdpool_sim.hardware import LLAMA_8B, known_models
from pdpool_sim.report import Row, as_json, table
from pdpool_sim.run import Figures, Slo
from pdpool_sim.workload import TraceError


@click.command()
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON lines with hash_ids.")
@click.option("--workload", type=click.Choice(sorted(GENERATORS)), default="chat", show_default=True)
@click.option("--requests", type=click.IntRange(1, 1_000_000), help="Only so many. Default: a whole trace, or 2000.")
@click.option("--rule", "rules", type=click.Choice(list(CONTESTANTS)), multiple=True, help="May be repeated; all.")
@click.option("--load", type=click.FloatRange(0.01, 3), default=0.8, show_default=True, help="Share of saturation.")
@click.option("--scale", type=click.FloatRange(min=0, min_open=True), help="Of arrivals, instead of --load.")
@click.option("--prefill", type=click.IntRange(1, 512), default=8, show_default=True, help="Prefill engines.")
@click.option("--decode", type=click.IntRange(1, 512), default=8, show_default=True, help="Decode engines.")
@click.option("--model", type=click.Choice(known_models()), default=LLAMA_8B, show_default=True)
@click.option("--prefill-hardware", type=click.Choice(sorted(hardware.profiles())), default="h100-sxm")
@click.option("--decode-hardware", type=click.Choice(sorted(hardware.profiles())), default="h100-sxm")
@click.option("--tensor", type=click.IntRange(1, 64), default=1, show_default=True, help="Accelerators of an engine.")
@click.option("--cache-share", type=click.FloatRange(0, 1), default=0, help="KV of a prefill engine, of all blocks.")
@click.option("--ttft", type=click.FloatRange(min=0, min_open=True), default=2000, show_default=True, help="SLO, ms.")
@click.option("--itl", type=click.FloatRange(min=0, min_open=True), default=50, show_default=True, help="SLO, ms.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def simulate(**options: Any) -> None:
    """Replays a trace, or a generated workload, through routing rules on a pool of engines.

    Load is a share of saturation: the arrival rate at which least-loaded first leaves 5 % of requests outside the SLO.
    """
    trace: Path | None = options["trace"]
    scene = Scene(
        workload=options["workload"] if trace is None else str(trace),
        requests=options["requests"] or (2000 if trace is None else 0),
        slo=Slo(options["ttft"] / 1000, options["itl"] / 1000),
        model=options["model"],
        prefill_hardware=options["prefill_hardware"],
        decode_hardware=options["decode_hardware"],
        tensor=options["tensor"],
        prefills=options["prefill"],
        decodes=options["decode"],
        cache_share=options["cache_share"],
        seed=options["seed"],
    )
    try:
        rows = _rows(scene, list(options["rules"]) or list(CONTESTANTS), options["load"], options["scale"])
    except (TraceError, ValueError) as fault:
        raise click.ClickException(str(fault)) from fault
    click.echo(json.dumps({"rows": as_json(rows)}, indent=1) if options["output"] == "json" else table(rows))


def _rows(scene: Scene, rules: list[str], load: float, scale: float | None) -> list[Row]:
    if scale is None:
        scale = load * limit(scene, LEAST_LOADED)
    found = cast("list[Figures]", run_all([Task(figures_at, (scene, rule, scale)) for rule in rules]))
    oracle = scene.oracle_hit_rate()
    cache = f"{scene.cache_share:.0%} of blocks each" if scene.cache_share else "of the profile"
    name = Path(scene.workload).stem
    return [
        Row(name, cache, load, rule, rule in OWN, figures, oracle) for rule, figures in zip(rules, found, strict=True)
    ]
