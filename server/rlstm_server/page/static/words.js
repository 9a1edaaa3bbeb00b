/** Numbers, sizes and tokens as they are read and as they are spoken. */

const NUMBERS = new Intl.NumberFormat("en");
const SIGNS = new Map([[" ", "␣"], ["\n", "↵"], ["\r", "␍"], ["\t", "⇥"]]);
const SPOKEN = new Map([[" ", "space"], ["\n", "new line"], ["\r", "carriage return"], ["\t", "tab"]]);
const UNSEEN = /[\p{C}\p{Z}\p{M}]/u;

export const whole = (number) => NUMBERS.format(number);
export const fixed = (number, digits = 2) => number.toFixed(digits).replace("-", "−");

/** A number of bits, short enough for a headline. */
export function bits(number) {
  const size = Math.abs(number);
  if (size < 1000) return `${fixed(number, size < 10 ? 2 : size < 100 ? 1 : 0)} bits`;
  return size < 1e6 ? `${fixed(number / 1e3, 1)} kbit` : `${fixed(number / 1e6, 1)} Mbit`;
}

/** A number of bytes. */
export function bytes(number) {
  if (number < 1000) return `${number} B`;
  return number < 1e6 ? `${fixed(number / 1e3, 1)} kB` : `${fixed(number / 1e6, 1)} MB`;
}

/** A token that can be seen, whatever it is. */
export const seen = (token) => Array.from(token, (sign) => SIGNS.get(sign) ?? (UNSEEN.test(sign) ? code(sign) : sign)).join("");

/** A token that can be heard. */
export const spoken = (token) => SPOKEN.get(token) ?? (token.length <= 2 && UNSEEN.test(token) ? code(token) : token);

const code = (sign) => `U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** What a session is called: its name, or the beginning of its id. */
export const called = (session) => session.name ?? session.id.slice(0, 8);
