"""The stand-in's tokenizer (reversible, two bytes a token) and its "model": each token a function of those before it.

Boundary: pure. A sequence of tokens is kept as bytes, two per token, little-endian, because slicing, hashing and
comparing bytes costs nearly nothing; lists of ids are made only where an answer must show them. Text of k bytes is
k/2 tokens, so a text prefix is a token prefix. Ids above 0xFE00 are special tokens or the odd last byte of a text; no
valid UTF-8 contains those bytes.
"""

from __future__ import annotations

import re
import zlib
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TOKEN_BYTES = 2
VOCABULARY = 1 << 16
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SPECIAL_HIGH, _ODD_HIGH = 0xFE, 0xFF
_SPECIAL_TOKENS = {text.encode(): bytes((index, _SPECIAL_HIGH)) for index, text in enumerate(SPECIALS)}
_SPLIT = re.compile(b"(" + b"|".join(re.escape(text) for text in _SPECIAL_TOKENS) + b")")
EOS = _SPECIAL_TOKENS[b"<|im_end|>"]
# 256 pairs of letters: what the stand-in's answers are made of.
_LETTERS = " etaoinshrdlcumw"
PAIRS = tuple((first + second).encode() for first in _LETTERS for second in _LETTERS)
# An answer ends by itself with chance 1/256 a token, but not before its eighth.
_EOS_DRAW, _SHORTEST_TOKENS = 0, 8


def _plain(text: bytes) -> bytes:
    return text if len(text) % 2 == 0 else text + bytes((_ODD_HIGH,))


def encoded(text: str) -> bytes:
    """The tokens of a text; special tokens are recognised wherever they are written."""
    raw = text.encode("utf-8", "replace")
    if b"<|" not in raw:
        return _plain(raw)
    return b"".join(_SPECIAL_TOKENS.get(part) or _plain(part) for part in _SPLIT.split(raw))


def decoded(tokens: bytes, *, keep_special: bool = True) -> str:
    """The text of tokens; the inverse of `encoded`."""
    if _SPECIAL_HIGH not in tokens and _ODD_HIGH not in tokens:
        return tokens.decode("utf-8", "replace")
    return b"".join(_piece(token, keep_special=keep_special) for token in pieces(tokens)).decode("utf-8", "replace")


def _piece(token: bytes, *, keep_special: bool) -> bytes:
    if token[1] == _ODD_HIGH:
        return token[:1]
    if token[1] == _SPECIAL_HIGH:
        return SPECIALS[token[0]].encode() if keep_special and token[0] < len(SPECIALS) else b""
    return token


def pieces(tokens: bytes) -> Iterator[bytes]:
    """One item per token."""
    return (tokens[at : at + TOKEN_BYTES] for at in range(0, len(tokens), TOKEN_BYTES))


def token_ids(tokens: bytes) -> list[int]:
    """The ids that an answer shows."""
    return array("H", tokens).tolist()


def from_ids(ids: Iterable[int]) -> bytes:
    """Tokens of ids.

    Raises:
        OverflowError, TypeError: an id outside the vocabulary, or not a number.
    """
    return array("H", ids).tobytes()


def count(tokens: bytes) -> int:
    """Number of tokens."""
    return len(tokens) // TOKEN_BYTES


def rendered(messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool) -> str:
    """The chat template: the same as the tiny model's."""
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def state(tokens: bytes, before: int = 0) -> int:
    """What the KV cache of these tokens "contains": a checksum, continued from the one of the tokens before."""
    return zlib.crc32(tokens, before)


def draw(model_state: int, salt: int = 0) -> int:
    """The next token as an index into `PAIRS`, from the state of all tokens before it."""
    return ((model_state ^ salt) * 2654435761 >> 16) & 0xFF


def continuation(
    model_state: int, most_tokens: int, *, ignore_eos: bool, salt: int = 0, least_tokens: int = 0
) -> tuple[list[bytes], bool]:
    """What follows a state: the tokens, and whether the answer ended by itself (its last token is then EOS).

    Continuing from the prompt and half of an answer gives the other half, as with a real model at temperature 0.
    """
    answer: list[bytes] = []
    shortest = max(_SHORTEST_TOKENS, least_tokens)
    while len(answer) < most_tokens:
        drawn = draw(model_state, salt)
        if drawn == _EOS_DRAW and not ignore_eos and len(answer) >= shortest:
            return [*answer, EOS], True
        piece = PAIRS[drawn]
        answer.append(piece)
        model_state = zlib.crc32(piece, model_state)
    return answer, False
