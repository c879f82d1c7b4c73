"""Pictures as people bring them: damaged, moving, printed, deep, clear, tiny, huge, turned, none, many."""

import base64
import io
import random
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from specviz.errors import BadInput
from specviz.models.vision import pictures
from specviz.models.vision.pictures import one_picture, open_picture

RED, BLUE = (200, 30, 30), (20, 40, 220)


def written(image, kind="PNG", **more):
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def halves():
    """Red on the left, blue on the right, wider than high."""
    made = Image.new("RGB", (40, 20), RED)
    made.paste(BLUE, (20, 0, 40, 20))
    return made


def near(one, other, by=3):
    return all(abs(a - b) <= by for a, b in zip(one, other, strict=True))


def claimed_png(wide, high):
    """A PNG whose header claims a size that its data does not have."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_plain_picture_comes_through_without_a_word(kind):
    found = open_picture(written(halves(), kind))
    assert (found.image.mode, found.image.size, found.warnings) == ("RGB", (40, 20), ())
    assert near(found.image.getpixel((4, 10)), RED, 12) and near(found.image.getpixel((35, 10)), BLUE, 12)


def test_a_path_will_do(tmp_path):
    (tmp_path / "scene.png").write_bytes(written(halves()))
    assert open_picture(tmp_path / "scene.png").image.size == (40, 20)
    assert open_picture(str(tmp_path / "scene.png")).image.size == (40, 20)
    with pytest.raises(BadInput, match="Check the path"):
        open_picture(tmp_path / "other.png")
    with pytest.raises(BadInput, match="Check the path"):
        open_picture(tmp_path)


@pytest.mark.parametrize("turn", range(1, 9))
def test_every_way_a_camera_can_be_held_is_turned_upright(turn):
    corners = Image.new("RGB", (16, 8), (255, 255, 255))
    corners.paste((0, 0, 0), (0, 0, 8, 4))  # black at the top left of the upright picture
    names = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_90 TRANSVERSE ROTATE_270".split()
    stored = corners if turn == 1 else corners.transpose(Image.Transpose[names[turn - 2]])
    exif = Image.Exif()
    exif[0x0112] = turn
    found = open_picture(written(stored, "PNG", exif=exif)).image
    assert found.size == (16, 8)
    assert (found.getpixel((2, 1)), found.getpixel((14, 1)), found.getpixel((2, 7))) == (
        (0, 0, 0), (255, 255, 255), (255, 255, 255),
    )  # fmt: skip


def test_a_damaged_note_on_turning_leaves_the_picture(monkeypatch):
    def broken(image):
        raise struct.error("unpack requires a buffer of 2 bytes")

    monkeypatch.setattr(pictures.ImageOps, "exif_transpose", broken)
    found = open_picture(written(halves()))
    assert found.image.size == (40, 20) and "orientation tag is damaged" in found.warnings[0]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_a_moving_picture_the_first_frame_is_shown(kind):
    frames = [Image.new("RGB", (12, 12), colour) for colour in (RED, BLUE, (0, 255, 0))]
    found = open_picture(written(frames[0], kind, save_all=True, append_images=frames[1:], duration=80, lossless=True))
    assert near(found.image.getpixel((5, 5)), RED, 6)
    assert found.warnings == ("The picture is animated; the model sees its first frame.",)


def test_a_printers_colours_are_converted():
    found = open_picture(written(halves().convert("CMYK"), "JPEG", quality=95))
    assert near(found.image.getpixel((4, 10)), RED, 14) and "printer" in found.warnings[0]


@pytest.mark.parametrize("top", [65535, 4095])
def test_sixteen_bits_become_eight_without_clipping(top):
    ramp = numpy.linspace(0, top, 64).astype(numpy.uint16)[None].repeat(8, 0)
    found = open_picture(written(Image.fromarray(ramp), "PNG"))
    row = [found.image.getpixel((x, 3))[0] for x in range(64)]
    assert found.image.mode == "RGB" and row == sorted(row)
    assert row[0] == 0 and abs(row[-1] - round(top / 257)) <= 1
    assert "8 bits" in found.warnings[0]


def test_what_is_clear_becomes_white():
    clear = halves().convert("RGBA")
    clear.putalpha(Image.new("L", clear.size, 255))
    clear.paste((0, 0, 0, 0), (20, 0, 40, 20))
    for image in (clear, clear.quantize(16), clear.convert("LA")):
        found = open_picture(written(image))
        assert found.image.getpixel((30, 10)) == (255, 255, 255)
        assert "white there" in found.warnings[0]
    opaque = halves().convert("RGBA")
    assert open_picture(written(opaque)).warnings == ()


@pytest.mark.parametrize("mode", ["1", "L", "P", "I", "YCbCr", "HSV", "LAB"])
def test_odd_kinds_of_pixels_become_plain_ones(mode):
    if mode in ("HSV", "LAB", "YCbCr", "I"):  # no file here stores these, but a decoder may hand them over
        assert pictures._to_rgb(Image.new(mode, (4, 4)))[0].mode == "RGB"
    else:
        assert open_picture(written(halves().convert(mode))).image.mode == "RGB"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_four_hundred_million_pixels_are_refused_before_they_are_decoded(monkeypatch):
    def never(self):
        raise AssertionError("a pixel was decoded")

    monkeypatch.setattr(Image.Image, "load", never)
    for size in ((20_000, 20_000), (8_000, 8_000), (10_000, 10_000), (4_100, 4_100)):
        with pytest.raises(BadInput, match="million pixels; at most 16 million are decoded"):
            open_picture(claimed_png(*size))
    with pytest.raises(BadInput, match="15,000,000 pixels; at most 20,000 are allowed"):
        open_picture(claimed_png(1, 15_000_000))


def test_a_phones_large_jpeg_is_decoded_at_a_fraction_and_comes_upright(monkeypatch):
    decoded, whole = [], JpegImageFile.load

    def load(self):
        decoded.append(self.size)
        return whole(self)

    monkeypatch.setattr(JpegImageFile, "load", load)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    stored = halves().resize((6000, 3000))
    found = open_picture(written(stored, "JPEG", exif=exif)).image
    assert decoded[0] == (3000, 1500) and found.size == (768, 1536)
    assert near(found.getpixel((300, 20)), RED, 12) and near(found.getpixel((300, 1500)), BLUE, 12)


def test_a_progressive_jpeg_has_to_be_decoded_whole_and_is_bounded_so():
    large = Image.new("L", (4200, 4200))
    assert open_picture(written(large, "JPEG")).image.size == (1536, 1536)
    with pytest.raises(BadInput, match="at most 16 million are decoded"):
        open_picture(written(large, "JPEG", progressive=True))


def test_a_jpeg_of_endless_passes_is_refused():
    data = written(halves(), "JPEG", progressive=True)
    assert open_picture(data).image.size == (40, 20)
    scan = data.rindex(b"\xff\xda")
    with pytest.raises(BadInput, match="more than 100 scans"):
        open_picture(data[:scan] + data[scan:-2] * 150 + data[-2:])


def test_large_pictures_are_decoded_one_at_a_time_and_a_crowd_is_turned_away(monkeypatch):
    large, small = written(Image.new("1", (2000, 2000))), written(halves())
    inside, most, release = [0], [0], threading.Event()

    def made(opened):
        if opened.width > 100:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            release.wait(30)
            inside[0] -= 1
        return pictures.Picture(opened)

    monkeypatch.setattr(pictures, "_make_picture", made)
    places = 1 + pictures.MOST_IN_LINE
    with ThreadPoolExecutor(places) as pool:
        asked = [pool.submit(open_picture, large) for _ in range(places)]
        while pictures._PLACES.acquire(blocking=False):  # until all of them have theirs
            pictures._PLACES.release()
        with pytest.raises(BadInput, match="being opened already. Try again"):
            open_picture(large)
        assert open_picture(small).image.size == (40, 20), "a small one need not wait"
        release.set()
        assert all(one.result().image.size == (2000, 2000) for one in asked)
    assert most == [1] and open_picture(large).image.size == (2000, 2000)


def test_large_pictures_are_opened_in_silence_and_made_smaller():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = open_picture(written(Image.new("1", (6000, 2000))))
    assert found.image.size == (1536, 512)


def test_a_heavy_file_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_BYTES", 1 << 20)
    (tmp_path / "heavy.png").write_bytes(bytes((1 << 20) + 5))
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("the file was read"))
    with pytest.raises(BadInput, match="at most 1 MB are allowed"):
        open_picture(tmp_path / "heavy.png")
    with pytest.raises(BadInput, match="at most 1 MB are allowed"):
        open_picture(bytes((1 << 20) + 5))


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"%PDF-1.7 ...", b"<svg xmlns='x'/>", b"\0" * 400, b"II*\0" + b"\0" * 90])
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(BadInput, match="not a picture that can be read here|file is empty"):
        open_picture(data)


def test_a_phones_two_views_of_one_scene_are_a_still_picture():
    found = open_picture(written(halves(), "MPO", save_all=True, append_images=[halves()]))
    assert (found.image.size, found.warnings) == ((40, 20), ())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damage_anywhere_is_told_and_never_more(kind):
    noise = Image.effect_noise((60, 40), 90).convert("RGB")
    whole, generator, refused = written(noise, kind), random.Random(kind), 0
    damages = [
        lambda data: data[: generator.randrange(1, len(data))],
        lambda data: bytes(byte if generator.random() > 0.01 else generator.randrange(256) for byte in data),
        lambda data: data[: (at := generator.randrange(len(data)))] + data[at + 9 :],
    ]
    for attempt in range(60):
        try:
            found = open_picture(damages[attempt % 3](whole))
            assert found.image.mode == "RGB" and max(found.image.size) <= pictures.LONGEST_SIDE
        except BadInput as error:
            refused += 1
            assert str(error).endswith((".", "again.")) and len(str(error)) < 400
    assert refused > 8


def test_none_and_ten_pictures_are_refused_and_one_in_a_list_is_not():
    for nothing in (None, []):
        with pytest.raises(BadInput, match="There is no picture. Choose one"):
            one_picture(nothing)
    with pytest.raises(BadInput, match="There are 10 pictures; a run uses one"):
        one_picture([written(halves())] * 10)
    assert one_picture([written(halves())]).image.size == (40, 20)
    assert one_picture(written(halves())).image.size == (40, 20)


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (700, 500), (3, 1500)])
def test_a_picture_travels_as_short_texts(size):
    noise = Image.effect_noise(size, 120).convert("RGB")
    pieces = pictures.png_pieces(noise)
    data = base64.b64decode("".join(pieces))
    back = Image.open(io.BytesIO(data))
    assert max(map(len, pieces)) <= 4096 and len(data) <= pictures.SHOWN_BYTES
    assert back.format == "PNG" and abs(back.width / back.height - size[0] / size[1]) <= 0.02 * size[0] / size[1]
    assert back.size == size or size == (700, 500)
