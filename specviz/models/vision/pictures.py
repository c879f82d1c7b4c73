"""Decoder of uploaded pictures: checks limits before decoding, rotates upright, converts to RGB.

Only common formats are allowed, which keeps rarely used decoders away from untrusted bytes. Large pictures are decoded one at a
time. An altered picture comes with warnings; an unusable picture is refused.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy
from PIL import Image, ImageOps, UnidentifiedImageError

from specviz.errors import BadInput, shown

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded. MPO, which some phones write, counts as JPEG."""
MOST_BYTES = 20 << 20
MOST_PIXELS = 16_000_000
"""Maximum pixels of a picture that is decoded at full size, which takes up to two seconds and 250 MB."""
MOST_JPEG_PIXELS = 50_000_000
"""Maximum pixels of a non-progressive JPEG, which is decoded at a reduced size."""
MOST_SIDE = 20_000
"""Maximum pixels per side: decoders spend time on each row, however short."""
MOST_SCANS = 100
"""Maximum number of scans in a progressive JPEG; encoders write about ten."""
LONGEST_SIDE = 1536
"""Maximum side of a decoded picture in pixels. Larger pictures are scaled down, since no model here reads more."""
QUICK_PIXELS = 1_000_000
"""Maximum pixels of a picture that is decoded without waiting; larger pictures wait their turn."""
MOST_IN_LINE = 8
"""Maximum number of large pictures that wait for the one being decoded."""

_PLACES = threading.BoundedSemaphore(1 + MOST_IN_LINE)
_DECODER = threading.Lock()

_NAMES = "PNG, JPEG, WebP, GIF or BMP"
_SHRINKABLE = {"L", "LA", "RGB", "RGBA", "CMYK"}
"""Pixel modes that can be scaled directly, unlike palette indices."""
_DEEP = {"I;16", "I;16B", "I;16L", "I;16N", "I", "F"}

SHOWN_BYTES = 60_000
"""Maximum bytes of a picture stored in a trace."""
PIECE = 4000
"""Characters per piece; strings in a trace's free JSON are limited to 4096."""

Source = bytes | str | Path
"""Bytes or path of a picture."""


@dataclass(frozen=True)
class Picture:
    """Decoded picture: RGB, upright, limited in size. ``warnings``: sentences about changes."""

    image: Image.Image
    warnings: tuple[str, ...] = ()


def one_picture(sources: Source | Sequence[Source] | None) -> Picture:
    """Open the one picture of a request. Raises BadInput for none, for several, or for one that cannot be opened."""
    given = [sources] if isinstance(sources, bytes | str | Path) else sources or ()
    if not given:
        raise BadInput("There is no picture. Choose one, or take one of the example scenes.")
    if len(given) > 1:
        raise BadInput(f"There are {len(given)} pictures; a run uses one. Choose one.")
    return open_picture(given[0])


def open_picture(source: Source) -> Picture:
    """Open the picture in ``source``. Raises BadInput, with a remedy, if it cannot be used."""
    data = _read(source)
    try:
        opened = Image.open(io.BytesIO(data), formats=FORMATS)  # reads only the header
    except Image.DecompressionBombError:
        raise _too_large("several hundred") from None
    except UnidentifiedImageError:
        raise BadInput(f"This file is not a picture that can be read here. Save it as {_NAMES}.") from None
    except Exception as problem:  # decoders raise many kinds of errors for a damaged header
        raise _damaged(problem) from problem
    wide, high = opened.size
    if wide < 1 or high < 1:
        raise BadInput("The picture has no pixels. Choose another.")
    progressive = "progressive" in opened.info
    most = MOST_JPEG_PIXELS if opened.format in ("JPEG", "MPO") and not progressive else MOST_PIXELS
    if wide * high > most:
        raise _too_large(f"{wide * high / 1e6:.0f}", most)
    if max(wide, high) > MOST_SIDE:
        raise BadInput(f"A side of the picture has {max(wide, high):,} pixels; at most {MOST_SIDE:,} are allowed. Crop it.")
    if progressive and data.count(b"\xff\xda") > MOST_SCANS:  # start-of-scan marker; inside scan data, ff is never followed by da
        raise BadInput(f"This JPEG has more than {MOST_SCANS} scans. Save it again as a non-progressive JPEG.")
    with _decoding_slot(wide * high):
        return _make_picture(opened)


@contextmanager
def _decoding_slot(pixels: int) -> Iterator[None]:
    """Hold the slot for decoding: only one large picture is decoded at a time. Raises BadInput if too many wait."""
    if pixels <= QUICK_PIXELS:
        yield
        return
    if not _PLACES.acquire(blocking=False):
        raise BadInput("Several large pictures are being opened already. Try again in a moment, or make this one smaller.")
    try:
        with _DECODER:
            yield
    finally:
        _PLACES.release()


def _read(source: Source) -> bytes:
    if isinstance(source, bytes):
        data = source
    else:
        try:
            path = Path(source).expanduser()
            exists = path.is_file()
        except (OSError, RuntimeError):  # name too long, or unknown user's home
            exists = False
        if not exists:
            raise BadInput(f"There is no picture {shown(str(source))}. Check the path.")
        if path.stat().st_size > MOST_BYTES:
            raise _too_heavy(path.stat().st_size)
        data = path.read_bytes()
    if not data:
        raise BadInput(f"The picture's file is empty. Choose another, as {_NAMES}.")
    if len(data) > MOST_BYTES:
        raise _too_heavy(len(data))
    return data


def _too_heavy(size: int) -> BadInput:
    return BadInput(f"The picture's file has {size / 2**20:.0f} MB; at most {MOST_BYTES >> 20} MB are allowed. Shrink it.")


def _too_large(millions: str, most: int = MOST_PIXELS) -> BadInput:
    return BadInput(
        f"The picture has {millions} million pixels; at most {most // 1_000_000} million are decoded here. "
        "Make it smaller and try again."
    )


def _damaged(problem: Exception) -> BadInput:
    reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:120]
    return BadInput(f"The picture is damaged ({reason}). Open it in another program, save it again as {_NAMES}, and retry.")


def _make_picture(opened: Image.Image) -> Picture:
    try:
        warnings = []
        if opened.format != "MPO" and getattr(opened, "is_animated", False):  # a phone's second view does not count
            opened.seek(0)
            warnings.append("The picture is animated; the model sees its first frame.")
        if opened.format in ("JPEG", "MPO"):
            share = min(1.0, LONGEST_SIDE / max(opened.size))
            opened.draft(opened.mode, (max(1, round(opened.width * share)), max(1, round(opened.height * share))))
        opened.load()
        # Shrink early: each later step makes a copy.
        if opened.mode in _SHRINKABLE and "transparency" not in opened.info:
            opened.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
        try:
            image = ImageOps.exif_transpose(opened)
        except Exception:  # EXIF data can be damaged too
            image = opened
            warnings.append("The picture's orientation tag is damaged; it is shown as stored.")
        plain_image, changed = _to_rgb(image)
    except (MemoryError, BadInput):
        raise
    except Exception as problem:  # damage after the header
        raise _damaged(problem) from problem
    if max(plain_image.size) > LONGEST_SIDE:
        plain_image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    return Picture(plain_image, (*warnings, *changed))


def _to_rgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Return the picture in RGB, with a warning about visible changes."""
    if image.mode in _DEEP:  # 16-bit grey keeps its high byte; other values are scaled to their range
        values = numpy.asarray(image).astype(numpy.float32)
        numpy.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        low, high = float(values.min()), float(values.max())
        if image.mode != "F" and low >= 0 and high <= 65535:
            low, high = 0.0, 65535.0
        values -= low
        values *= 255.0 / (high - low) if high > low else 0.0
        grey = Image.fromarray(values.round(out=values).clip(0, 255, out=values).astype(numpy.uint8), "L")
        return grey.convert("RGB"), ("The picture has more than 8 bits per colour channel; the model sees 8.",)
    if image.has_transparency_data:
        clear = image.convert("RGBA").getextrema()[3][0] < 255  # type: ignore[misc]  # one pair per channel
        return on_white(image), ("The picture is transparent in places; the model sees white there.",) if clear else ()
    if image.mode == "CMYK":
        return image.convert("RGB"), ("The picture has a printer's colours (CMYK); on a screen they look slightly different.",)
    return image.convert("RGB"), ()


def on_white(image: Image.Image) -> Image.Image:
    """Return the picture in RGB on a white background."""
    flat = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", flat.size, "white"), flat).convert("RGB")


def png_pieces(image: Image.Image) -> list[str]:
    """Return the picture as base64 PNG in pieces of PIECE characters, scaled down to at most SHOWN_BYTES."""
    scaled = image
    while True:
        out = io.BytesIO()
        scaled.save(out, "PNG", optimize=True)
        if out.tell() <= SHOWN_BYTES or max(scaled.size) <= 32:
            text = base64.b64encode(out.getvalue()).decode("ascii")
            return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        share = max(0.5, 0.9 * (SHOWN_BYTES / out.tell()) ** 0.5)
        size = (max(1, round(scaled.width * share)), max(1, round(scaled.height * share)))
        scaled = scaled.resize(size, Image.Resampling.LANCZOS)
