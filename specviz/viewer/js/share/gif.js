// @ts-check
// A film as a GIF, for pages that show no video: one palette for all frames, and of each frame only the part that changed.
import * as dom from "../kit/dom.js";

const [PER_SECOND, MOST_FRAMES, LAST] = [8, 160, 150];
const [CLEAR, END, FULL] = [256, 257, 4096];

/** @param {number} number */
const word = (number) => [number & 255, number >> 8];
/** Five bits of each part of a colour. @param {number} pixel its bytes, red last */
const coarse = (pixel) => ((pixel >> 3) & 31) | ((pixel >> 6) & 992) | ((pixel >> 9) & 31744);

/** The 256 most frequent colours, and the index of the nearest for every coarse one. @param {Uint32Array[]} frames */
function colours(frames) {
  /** @type {Map<number, [number, number]>} */
  const counts = new Map();
  for (const frame of frames) {
    for (const pixel of frame) {
      const seen = counts.get(coarse(pixel));
      if (seen) seen[1] += 1;
      else counts.set(coarse(pixel), [pixel, 1]);
    }
  }
  const palette = [...counts.values()].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([pixel]) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]);
  const nearest = new Int16Array(32768).fill(-1);
  /** @param {number} pixel */
  const index = (pixel) => {
    const key = coarse(pixel);
    if (nearest[key] < 0) {
      const far = palette.map(([red, green, blue]) => (red - (pixel & 255)) ** 2 + (green - ((pixel >> 8) & 255)) ** 2 + (blue - ((pixel >> 16) & 255)) ** 2);
      nearest[key] = far.indexOf(Math.min(...far));
    }
    return nearest[key];
  };
  return { table: Uint8Array.from({ length: 768 }, (_, at) => palette[Math.floor(at / 3)]?.[at % 3] || 0), index };
}

/** Pixels compressed by LZW, in blocks of at most 255 bytes (GIF89a, appendix F). @param {number[]} pixels */
function packed(pixels) {
  const bytes = [8];
  let [held, bits, size, next, start] = [0, 0, 9, END + 1, 0];
  /** @type {Map<number, number>} */
  const known = new Map();
  const put = (/** @type {number} */ code) => {
    held |= code << bits;
    for (bits += size; bits >= 8; bits -= 8, held >>>= 8) {
      if (start === 0 || bytes.length - start > 255) start = bytes.push(0) - 1;
      bytes[start] = bytes.push(held & 255) - 1 - start;
    }
  };
  put(CLEAR);
  let before = pixels[0];
  for (const pixel of pixels.slice(1)) {
    const key = (before << 8) | pixel;
    const code = known.get(key);
    if (code !== undefined) {
      before = code;
      continue;
    }
    put(before);
    if (next === FULL) {
      put(CLEAR);
      known.clear();
      [size, next] = [9, END + 1];
    } else {
      if (next >= 1 << size) size += 1;
      known.set(key, next);
      next += 1;
    }
    before = pixel;
  }
  put(before);
  put(END);
  size = 8;
  if (bits) put(0);
  return Uint8Array.from([...bytes, 0]);
}

/** @param {import("./race.js").Film} film @param {(share: number) => void} progress @returns {Promise<Blob>} */
export async function gif({ canvas, seconds, draw }, progress) {
  const { width, height } = canvas;
  const count = Math.max(1, Math.min(MOST_FRAMES, Math.round(seconds * PER_SECOND)));
  const delay = Math.max(2, Math.round((100 * seconds) / count));
  const shot = (/** @type {number} */ share) => {
    draw(share);
    return new Uint32Array(dom.pen(canvas).getImageData(0, 0, width, height).data.buffer);
  };
  const { table, index } = colours([0, 0.3, 0.6, 1].map(shot));
  const looped = [0x21, 0xff, 11, ..."NETSCAPE2.0"].map((one) => (typeof one === "string" ? one.charCodeAt(0) : one));
  /** @type {BlobPart[]} */
  const parts = ["GIF89a", Uint8Array.from([...word(width), ...word(height), 0xf7, 0, 0]), table, Uint8Array.from([...looped, 3, 1, 0, 0, 0])];
  /** @type {number[]} */
  let before = [];
  for (let at = 0; at <= count; at += 1) {
    const frame = Array.from(shot(at / count), index);
    let [left, top, right, bottom] = before.length ? [width, height, -1, -1] : [0, 0, width - 1, height - 1];
    frame.forEach((pixel, place) => {
      if (!before.length || pixel === before[place]) return;
      const [x, y] = [place % width, Math.floor(place / width)];
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
    });
    if (right < 0) [left, top, right, bottom] = [0, 0, 0, 0]; // nothing moved
    const rows = Array.from({ length: bottom - top + 1 }, (_, row) => frame.slice((top + row) * width + left, (top + row) * width + right + 1));
    const shown = word(at < count ? delay : LAST);
    parts.push(Uint8Array.from([0x21, 0xf9, 4, 4, ...shown, 0, 0, 0x2c, ...word(left), ...word(top), ...word(right - left + 1), ...word(bottom - top + 1), 0]), packed(rows.flat()));
    before = frame;
    progress(at / count);
    await new Promise((done) => setTimeout(done));
  }
  return new Blob([...parts, Uint8Array.from([0x3b])], { type: "image/gif" });
}
