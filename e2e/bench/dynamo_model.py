"""A program for Dynamo's own interpreter: write what its frontend and mockers read of a model.

Usage: `dynamo_model.py FOLDER`. Boundary: no import of this project, because it runs where only Dynamo's packages are.
There are no weights. The tokenizer is trained on sources of Dynamo, whose version is pinned, so that it is always the
same; all of it is ASCII, so that every token that a mocker makes up (ids 1,000 to 2,000) is a text by itself.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
TEXT_BYTES = 400_000
CONTEXT_TOKENS = 4_194_304
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def training_text() -> str:
    """Python sources of the pinned package, in a fixed order, up to a bound."""
    sources = sorted((Path(sysconfig.get_paths()["purelib"]) / "dynamo" / "common").rglob("*.py"))
    return b"".join(path.read_bytes() for path in sources).decode("ascii", "ignore")[:TEXT_BYTES]


def main() -> None:
    """Write tokenizer, chat template and configuration into the folder given."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text().splitlines(keepends=True), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"a vocabulary of {tokenizer.get_vocab_size()}, not {VOCABULARY}: the text is too short")
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": CHAT_TEMPLATE,
    }
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "eos_token_id": 2,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "config.json").write_text(json.dumps(config))


main()
