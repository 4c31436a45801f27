"""The tiny model that real engines serve in tests: made on the spot, the same for the same pins and seed.

Boundary: calls `make_model.py` with the engine's interpreter and keeps the result by the hash of its recipe.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from e2e.cluster.progress import Progress
from e2e.engine import install

SEED = 0
MAKER = Path(__file__).parent / "make_model.py"
# What the recipe makes; KV bytes of a token are 2 (K and V) x layers x KV heads x head size x 4 (float32).
LAYERS, KV_HEADS, HEAD_SIZE, VOCABULARY, BLOCK_TOKENS = 2, 2, 64, 4096, 32
KV_BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_SIZE * 4


def recipe_hash() -> str:
    """Twelve hex digits over the maker, the pins (they hold the text that the tokenizer is trained on) and the seed."""
    digest = hashlib.sha256(MAKER.read_bytes() + install.LOCK_FILE.read_bytes())
    digest.update(str(SEED).encode())
    return digest.hexdigest()[:12]


def folder() -> Path:
    """Where the model is, made or not; its LoRA adapter is in `adapter/` inside."""
    return install.engine_root() / "models" / f"tiny-{recipe_hash()}"


def make(progress: Progress | None = None) -> Path:
    """Make the model if it is not there; needs the engine's environment.

    Returns:
        The model's folder.

    Raises:
        install.InstallError: the maker failed.
    """
    progress = progress or Progress("engine")
    final = folder()
    if final.is_dir():
        progress.say(f"model is there: {final}")
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f"{final.name}.part-{os.getpid()}")
    part.mkdir()
    try:
        with progress.step("tiny model"):
            command: list[str | Path] = [install.venv() / "bin/python", MAKER, part, str(SEED)]
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"}
            )
            if ended.returncode != 0:
                raise install.InstallError(f"making the model failed:\n{ended.stderr[-3000:]}")
            if not final.is_dir():
                part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final
