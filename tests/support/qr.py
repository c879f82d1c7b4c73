"""A reader of QR codes, written against the standard and apart from what draws them: bytes, in small versions."""

from __future__ import annotations

MASKS = (
    lambda y, x: (y + x) % 2 == 0, lambda y, x: y % 2 == 0, lambda y, x: x % 3 == 0, lambda y, x: (y + x) % 3 == 0,
    lambda y, x: (y // 2 + x // 3) % 2 == 0, lambda y, x: y * x % 2 + y * x % 3 == 0,
    lambda y, x: (y * x % 2 + y * x % 3) % 2 == 0, lambda y, x: ((y + x) % 2 + y * x % 3) % 2 == 0,
)  # fmt: skip
M, H, Q = 0b00, 0b10, 0b11
BLOCKS = {
    M: {1: (1, 16), 2: (1, 28), 3: (1, 44), 4: (2, 32), 5: (2, 43), 6: (4, 27)},
    Q: {1: (1, 13), 2: (1, 22), 3: (2, 17), 4: (2, 24)},
    H: {1: (1, 9), 2: (1, 16), 3: (2, 13), 4: (4, 9)},
}
"""Blocks of data and codewords in each, by level and version."""
FORMAT_MASK = 0b101010000010010


def text(rows: list[str]) -> str:
    """What the modules say, taken as printed without a flaw; no error is corrected."""
    size = len(rows)
    version = (size - 17) // 4
    assert all(len(row) == size for row in rows)
    dark = [[module == "1" for module in row] for row in rows]
    told = [dark[8][x] for x in (0, 1, 2, 3, 4, 5, 7, 8)] + [dark[y][8] for y in (7, 5, 4, 3, 2, 1, 0)]
    form = int("".join("1" if one else "0" for one in told), 2) ^ FORMAT_MASK
    mask = MASKS[form >> 10 & 7]
    bits = [dark[y][x] ^ mask(y, x) for y, x in _order(size, version)]
    words = [int("".join("1" if one else "0" for one in bits[at : at + 8]), 2) for at in range(0, len(bits) // 8 * 8, 8)]
    count, each = BLOCKS[form >> 13][version]
    blocks = [words[at : count * each : count] for at in range(count)]
    data = "".join(f"{word:08b}" for block in blocks for word in block)
    assert data[:4] == "0100", "bytes"
    length = int(data[4:12], 2)
    return bytes(int(data[12 + 8 * at : 20 + 8 * at], 2) for at in range(length)).decode()


def _order(size: int, version: int) -> list[tuple[int, int]]:
    """Places of the data: up and down in columns of two, from the right, around all patterns."""
    places, up = [], True
    for right in (x for x in range(size - 1, 0, -2)):
        column = right if right > 6 else right - 1
        for y in range(size - 1, -1, -1) if up else range(size):
            places += [(y, x) for x in (column, column - 1) if not _pattern(y, x, size, version)]
        up = not up
    return places


def _pattern(y: int, x: int, size: int, version: int) -> bool:
    finder = (y < 9 and x < 9) or (y < 9 and x >= size - 8) or (y >= size - 8 and x < 9)
    aligned = version > 1 and abs(y - (size - 7)) < 3 and abs(x - (size - 7)) < 3
    return finder or aligned or y == 6 or x == 6
