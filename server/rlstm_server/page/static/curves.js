/** The two charts beside the text: bits per byte so far, and the experts' weights. */

import { Chart } from "./chart.js";
import { byId, oncePerFrame, shape } from "./element.js";
import { bytes, fixed } from "./words.js";

const NOTHING = "nothing read yet";
const MOST_POINTS = 400;
const LABEL_PIXELS = 14;
const LABEL_WIDTH = 98;
/** The first bytes swing widely: the scale is that of what comes after them, where there is enough. */
const SETTLED = 0.04;
/** What is drawn, the last on top, by what it is called. */
const PARTS = { fixed: "static", weights: "weights", memory: "memory", adapted: "adapted" };

export class Curves {
  #transcript = null;
  #experts = [];
  #charts = [];
  #cursor = null;
  #draw = oncePerFrame(() => this.#drawNow());

  constructor() {
    const redraw = new ResizeObserver(() => this.#draw());
    redraw.observe(byId("curve"));
    redraw.observe(byId("weights"));
  }

  /** Draw a transcript of a session that adapts so; null draws nothing. */
  show(transcript, adaptation) {
    this.#transcript = transcript;
    this.#experts = adaptation === undefined ? [] : expertsOf(adaptation);
    this.#cursor = null;
    this.#draw();
  }

  /** The transcript has grown. */
  grow() {
    this.#draw();
  }

  /** Point at a place, in bytes. */
  point(place) {
    this.#cursor = place;
    for (const chart of this.#charts) chart.point(place);
  }

  #drawNow() {
    this.#charts = [];
    const curve = thinned(this.#transcript?.length ? [...this.#transcript.curve, this.#transcript.now] : []);
    if (curve.length >= 2) this.#drawCurve(curve);
    else drawNothing(byId("curve"), "Bits per byte so far");
    const weights = thinned(this.#transcript?.weights ?? []);
    if (weights.length >= 2) this.#drawWeights(weights);
    else drawNothing(byId("weights"), "Weight of each expert");
    this.point(this.#cursor);
  }

  #drawCurve(curve) {
    const last = curve.at(-1);
    const parts = Object.keys(PARTS).filter((part) => last[part] !== null);
    const settled = curve.slice(Math.floor(curve.length * SETTLED));
    const values = settled.flatMap((point) => parts.map((part) => point[part]));
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const room = Math.max(0.05, (most - least) * 0.1);
    const chart = new Chart(byId("curve"), {
      x: [this.#transcript.weights[0].bytes, last.bytes],
      y: [Math.max(0, least - room), most + room],
      right: LABEL_WIDTH,
      xLabel: sizeTick,
      yLabel: (value) => fixed(value, most - least > 2 ? 1 : 2),
    });
    const line = (part) => curve.map((point) => [point.bytes, point[part]]);
    if (last.fixed !== null) chart.area(line("fixed"), line("adapted"), "gain");
    for (const part of parts) chart.line(line(part), PARTS[part]);
    const labels = parts.map((part) => ({ name: PARTS[part], value: last[part], y: chart.y(last[part]) })).reverse();
    const spoken = labels.map(({ name, value }) => `${name} ${fixed(value)}`).join(", ");
    for (const { name, value, y } of apart(labels, chart)) chart.label(`${name} ${fixed(value)}`, chart.right + 5, y, name);
    byId("curve").setAttribute("aria-label", `Bits per byte so far, after ${bytes(last.bytes)}: ${spoken}`);
    this.#charts.push(chart);
  }

  #drawWeights(points) {
    const last = points.at(-1);
    const chart = new Chart(byId("weights"), {
      x: [points[0].bytes, Math.max(last.bytes, points[0].bytes + 1)],
      y: [0, 1],
      right: LABEL_WIDTH,
      xLabel: sizeTick,
      yLabel: (value) => `${Math.round(value * 100)} %`,
    });
    let lower = points.map((point) => [point.bytes, 0]);
    const labels = this.#experts.map((name, expert) => {
      const upper = points.map((point, index) => [point.bytes, lower[index][1] + point.weights[expert]]);
      chart.area(upper, lower, name === "memory" ? name : `expert${expert}`);
      const middle = (upper.at(-1)[1] + lower.at(-1)[1]) / 2;
      lower = upper;
      return { name, value: last.weights[expert], y: chart.y(middle) };
    });
    for (const { name, y } of apart(labels, chart)) chart.label(name, chart.right + 5, y, "expert");
    byId("weights").setAttribute("aria-label", `Weight of each expert: ${labels.map(({ name, value }) => `${name} ${Math.round(value * 100)} %`).join(", ")}`);
    this.#charts.push(chart);
  }
}

function sizeTick(size) {
  return size < 1000 ? `${size} B` : size < 1e6 ? `${size / 1e3} kB` : `${size / 1e6} MB`;
}

function drawNothing(svg, title) {
  svg.setAttribute("viewBox", `0 0 ${svg.clientWidth} ${svg.clientHeight}`);
  svg.replaceChildren(shape("text", { class: "tick", x: svg.clientWidth / 2, y: svg.clientHeight / 2, "text-anchor": "middle" }, NOTHING));
  svg.setAttribute("aria-label", `${title}: ${NOTHING}`);
}

/** What the experts that are mixed are called: by their learning rates, and the memory last. */
function expertsOf({ rates, adapt }) {
  const names = rates.map((rate) => (rate === 0 ? "static" : `rate ${Number(rate.toPrecision(2))}`));
  return adapt === "weights" ? names : [...names, "memory"];
}

/** At most so many points, the first and the last among them. */
function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const step = (points.length - 1) / (MOST_POINTS - 1);
  return Array.from({ length: MOST_POINTS }, (_, index) => points[Math.round(index * step)]);
}

/** Move labels apart that would lie on each other, and keep them beside the chart. */
function apart(labels, chart) {
  const sorted = [...labels].sort((one, other) => one.y - other.y);
  let free = -Infinity;
  for (const label of sorted) {
    label.y = Math.max(label.y, free);
    free = label.y + LABEL_PIXELS;
  }
  free = chart.bottom;
  for (const label of sorted.reverse()) {
    label.y = Math.min(label.y, free);
    free = label.y - LABEL_PIXELS;
  }
  return sorted;
}
