/** Cutting text into pieces of so many bytes of UTF-8, never inside a character. */

const width = (unit) => (unit < 0x80 ? 1 : unit < 0x800 ? 2 : 3);
const isHigh = (unit) => unit >= 0xd800 && unit < 0xdc00;
const isLow = (unit) => unit >= 0xdc00 && unit < 0xe000;

/** How many bytes a text is in UTF-8. */
export function byteLength(text, from = 0, to = text.length) {
  let bytes = 0;
  for (let index = from; index < to; index += 1) {
    const unit = text.charCodeAt(index);
    if (isHigh(unit) && isLow(text.charCodeAt(index + 1))) {
      bytes += 4;
      index += 1;
    } else bytes += width(unit);
  }
  return bytes;
}

/** Where a piece ends that begins at `from` and has at most `most` bytes (4 or more). */
export function cut(text, from, most) {
  let index = from;
  for (let bytes = 0; index < text.length; ) {
    const unit = text.charCodeAt(index);
    const isPair = isHigh(unit) && isLow(text.charCodeAt(index + 1));
    bytes += isPair ? 4 : width(unit);
    if (bytes > most) break;
    index += isPair ? 2 : 1;
  }
  return index;
}
