"""Character classes behind the border rules. Pure."""

from __future__ import annotations

# Scripts written without spaces between words: there a neighbouring letter says nothing about a word border.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # CJK ideographs, extension A
    (0x4E00, 0x9FFF),  # CJK ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0x20000, 0x3FFFF),  # CJK ideographs, the later extensions
)


def is_word(char: str) -> bool:
    """True when `char` could continue a word beside it: letters, digits and _ of scripts that put spaces between words."""
    if not (char.isalnum() or char == "_"):
        return False
    code = ord(char)
    return code < 0x0E00 or not any(low <= code <= high for low, high in _UNSPACED)


def lower_same_length(text: str) -> str:
    """Lower case that never moves an offset: the few characters whose lower case is longer stay as they are."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
