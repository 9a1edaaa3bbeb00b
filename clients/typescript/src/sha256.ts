/** SHA-256 (FIPS 180-4). Browsers have it too, but not for pages that come over plain HTTP. */

const PRIMES = firstPrimes(64);
const ROUNDS = PRIMES.map((prime) => fraction(Math.cbrt(prime)));
const START = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));

/** The digest of bytes, in hexadecimal. */
export function sha256(data: Uint8Array): string {
  const padded = new DataView(new ArrayBuffer(Math.ceil((data.length + 9) / 64) * 64));
  new Uint8Array(padded.buffer).set(data);
  padded.setUint8(data.length, 0x80);
  padded.setBigUint64(padded.byteLength - 8, 8n * BigInt(data.length));
  const state = Uint32Array.from(START);
  for (let start = 0; start < padded.byteLength; start += 64) {
    compress(state, new DataView(padded.buffer, start, 64));
  }
  return Array.from(state, (word) => word.toString(16).padStart(8, "0")).join("");
}

function compress(state: Uint32Array, block: DataView): void {
  const words = new Uint32Array(64);
  const word = (index: number): number => words[index] ?? 0;
  let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = state;
  for (const [round, constant] of ROUNDS.entries()) {
    const [early, late] = [word(round - 15), word(round - 2)];
    words[round] =
      round < 16
        ? block.getUint32(4 * round)
        : word(round - 16) +
          (turned(early, 7) ^ turned(early, 18) ^ (early >>> 3)) +
          word(round - 7) +
          (turned(late, 17) ^ turned(late, 19) ^ (late >>> 10));
    const first =
      h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + constant + word(round);
    const second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
  }
  for (const [index, added] of [a, b, c, d, e, f, g, h].entries()) {
    state[index] = (state[index] ?? 0) + added;
  }
}

/** A word with its bits turned right. */
function turned(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

/** The first 32 bits behind the point. */
function fraction(value: number): number {
  return Math.floor((value % 1) * 2 ** 32);
}

function firstPrimes(count: number): number[] {
  const primes: number[] = [];
  for (let candidate = 2; primes.length < count; candidate += 1) {
    if (primes.every((prime) => candidate % prime !== 0)) {
      primes.push(candidate);
    }
  }
  return primes;
}
