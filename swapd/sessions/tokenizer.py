"""Text to tokens and back, for the model that is served. The coordinator's is the only one (A28)."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import tokenizers

from swapd.errors import Code, SwapdError
from swapd.sessions.text import Decoder

TOKENIZER_FILE: Final = "tokenizer.json"
PENDING_TOKENS: Final = 32
"""A character has at most four bytes: so many tokens without a whole one are broken bytes."""
_INCOMPLETE: Final = "\ufffd"


class Tokenizer(Protocol):
    """What the service needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of exactly this text: nothing is put before or after it."""

    def decoder(self) -> Decoder:
        """Return a decoder at the beginning of a transcript."""


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load a checkpoint's tokenizer. Raises `model_missing`."""
    path = Path(folder) / TOKENIZER_FILE
    if not path.is_file():
        raise SwapdError(Code.MODEL_MISSING, f"no {path}")
    try:
        return FileTokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception for a file that it cannot read
        raise SwapdError(Code.MODEL_MISSING, f"{path} is not a tokenizer") from error


class FileTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` library."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # Some checkpoints carry a training set-up that would cut or fill prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decoder(self) -> Decoder:
        return _WindowDecoder(self._tokenizer)


class _WindowDecoder:
    """Decodes each new token behind those of the last piece, and keeps back what is not yet a character.

    The library's own `DecodeStream` does the same, but cannot say what it still holds at the end, raises
    where a byte-fallback vocabulary reads earlier bytes anew, and holds a run of broken bytes for ever.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoders look at what stands before a token, if only to see that it is not the first.
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        piece = self._piece()
        if piece.endswith(_INCOMPLETE) and len(self._pending) < PENDING_TOKENS:
            return ""
        self._advance(piece)
        return piece

    def flush(self) -> str:
        piece = self._piece() if self._pending else ""
        self._advance(piece)
        return piece

    def _piece(self) -> str:
        text = self._decode(self._context + self._pending)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # What was shown stays as it was shown.
        return self._decode(self._pending)

    def _advance(self, piece: str) -> None:
        if piece:
            self._context, self._context_text = self._pending, self._decode(self._pending)
        # A token without text, such as a special one, is no context for the next.
        self._pending = []

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class SimTokenizer:
    """The `sim` engine's: bytes are tokens, and a token reads as its number."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def encode(self, text: str) -> list[int]:
        return [byte % self._vocab_size for byte in text.encode()]

    def decoder(self) -> Decoder:
        return _SimDecoder()


class _SimDecoder:
    def push(self, token_id: int) -> str:
        return f"{token_id} "

    def flush(self) -> str:
        return ""
