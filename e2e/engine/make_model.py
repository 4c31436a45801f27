"""A program for the engine's own interpreter: write a tiny random Qwen3 and a tokenizer trained on pinned text.

Usage: `make_model.py FOLDER SEED`. Boundary: no import of this project, because it runs where only the engine's
packages are. The text comes from packages whose versions are pinned, so that the same pins give the same vocabulary.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 4096
MAX_TOKENS = 4096
TEXT_PACKAGES = ("numpy", "jinja2", "anyio", "httpx")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def training_texts() -> Iterator[str]:
    """Python sources of the pinned packages, in a fixed order."""
    packages = Path(sysconfig.get_paths()["purelib"])
    for package in TEXT_PACKAGES:
        for path in sorted((packages / package).rglob("*.py"))[:200]:
            yield path.read_text(encoding="utf8", errors="replace")


def write_tokenizer(folder: str) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer and save it with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0], model_max_length=MAX_TOKENS
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_weights(folder: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Save a model of about 3 million random weights: 2 layers, hidden 256, 2 KV heads of 64, float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=False,
        initializer_range=0.2,  # wide enough that answers differ between prompts
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)


def write_adapter(folder: Path, seed: int) -> None:
    """Save a small LoRA adapter over the attention projections, in the form that engines load."""
    generator = torch.Generator().manual_seed(seed + 1)
    rank, hidden, queries = 8, 256, 256
    weights = {}
    for layer in range(2):
        stem = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{stem}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator)
        weights[f"{stem}.lora_B.weight"] = torch.randn(queries, rank, generator=generator)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = '{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, '
    (folder / "adapter_config.json").write_text(
        config + '"bias": "none", "target_modules": ["q_proj"], "base_model_name_or_path": "tiny"}\n'
    )


def main() -> None:
    """Write tokenizer, weights and adapter into the folder given."""
    folder, seed = sys.argv[1], int(sys.argv[2])
    tokenizer = write_tokenizer(folder)
    write_weights(folder, tokenizer, seed)
    write_adapter(Path(folder) / "adapter", seed)


main()
