/** Drawing a chart: a frame with ticks, and lines and areas in it. Colours are the style sheet's. */

import { shape } from "./element.js";

const MARGIN = { left: 46, right: 8, top: 8, bottom: 22 };
const TICK_PIXELS = { x: 64, y: 36 };

export class Chart {
  #svg;
  #cursor = null;

  /** Begin a drawing in `svg`; x and y are [least, most], `right` is room for labels. */
  constructor(svg, { x, y, right = MARGIN.right, xLabel = String, yLabel = String }) {
    this.#svg = svg;
    this.width = svg.clientWidth || 320;
    this.height = svg.clientHeight || 180;
    this.right = this.width - right;
    this.bottom = this.height - MARGIN.bottom;
    this.xRange = x;
    this.yRange = y;
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    svg.replaceChildren();
    this.#frame(xLabel, yLabel);
  }

  x(value) {
    return between(value, this.xRange, MARGIN.left, this.right);
  }

  y(value) {
    return between(value, this.yRange, this.bottom, MARGIN.top);
  }

  line(points, name) {
    this.#svg.append(shape("path", { class: `line ${name}`, d: this.#path(points) }));
  }

  /** Fill between two rows of points of the same places. */
  area(upper, lower, name) {
    const d = `${this.#path(upper)}L${this.#path([...lower].reverse()).slice(1)}Z`;
    this.#svg.append(shape("path", { class: `area ${name}`, d }));
  }

  label(text, x, y, name) {
    this.#svg.append(shape("text", { class: `label ${name}`, x, y, "dominant-baseline": "middle" }, text));
  }

  /** Put the cursor on a value of x; null takes it away. */
  point(value) {
    this.#cursor?.remove();
    this.#cursor = null;
    if (value === null || value < this.xRange[0] || value > this.xRange[1]) return;
    const x = this.x(value).toFixed(1);
    this.#cursor = shape("line", { class: "pointer", x1: x, x2: x, y1: MARGIN.top, y2: this.bottom });
    this.#svg.append(this.#cursor);
  }

  #path(points) {
    const [least, most] = this.yRange;
    const inside = (value) => Math.min(most, Math.max(least, value));
    return `M${points.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(inside(y)).toFixed(1)}`).join("L")}`;
  }

  #frame(xLabel, yLabel) {
    for (const value of ticks(this.yRange, (this.bottom - MARGIN.top) / TICK_PIXELS.y)) {
      const y = this.y(value).toFixed(1);
      this.#svg.append(
        shape("line", { class: "grid", x1: MARGIN.left, x2: this.right, y1: y, y2: y }),
        shape("text", { class: "tick", x: MARGIN.left - 6, y, "text-anchor": "end", "dominant-baseline": "middle" }, yLabel(value)),
      );
    }
    for (const value of ticks(this.xRange, (this.right - MARGIN.left) / TICK_PIXELS.x)) {
      const x = this.x(value);
      const anchor = x > this.width - 24 ? "end" : x < MARGIN.left + 12 ? "start" : "middle";
      this.#svg.append(shape("text", { class: "tick", x: x.toFixed(1), y: this.height - 6, "text-anchor": anchor }, xLabel(value)));
    }
  }
}

/** Round values between two, some `count` of them. */
export function ticks([least, most], count) {
  const rough = (most - least) / Math.max(1, count);
  if (!(rough > 0)) return [least];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const values = [];
  for (let index = Math.ceil(least / step - 1e-9); index * step <= most + step * 1e-9; index += 1) {
    values.push(Number((index * step).toPrecision(12)));
  }
  return values;
}

function between(value, [least, most], from, to) {
  return from + ((value - least) / (most - least || 1)) * (to - from);
}
