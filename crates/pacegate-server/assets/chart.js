// Charts of the dashboard and of the report of `pacegate simulate`. One module, no imports, no HTML from text.
//
// To inline it into one HTML file, put it at the top of a `<script type="module">` and the page's own code after it in
// a block, `{ ... }`, so that names cannot clash. Keys and labels are untrusted: they only become text nodes.
//
//   timeline(host, data, options) -> { update(data), remove() }
//     data.times    ascending epoch seconds: the END of each sample; at most about 2,000
//     data.series   [{ name, values, color, kind }]: one value per time (null: unknown); `color` is "allowed",
//                   "denied", "degraded", "shadow", "true-rate" or any CSS colour; `kind` is "stack" (default; stacked, stepped
//                   areas) or "line" (dashed if `dashed`)
//     data.step     seconds per sample (default: the distance between the last two)
//     data.limits   [{ value, label }]: horizontal lines; a limit far above all values is only named
//     data.axis, data.label   replace those of the options
//     data.marks    [{ from, to, label }]: spans, or points if `to` is absent
//     options       { label (for the summary), unit: "/s", height: 240, legend: true, utc: false,
//                   axis: name of the vertical axis with its unit, format: text of a value with its unit,
//                   span: minimum length of the axis in seconds,
//                   cutOutliers: cut a few samples that are so many times as high as the others, and label the highest }
//   sparkline(host, data, options) -> { update(data) }   the same data without axes; options { label }
//   bars(host, rows, options) -> { update(rows) }        a list of horizontal bars
//     rows          [{ label, note, parts: [{ name, value, color }] }]; the longest row fills the width
//     options       { onSelect(row, index), empty: "text when there are no rows" }
//   number(1234567) -> "1.23 M"    whole(1234567) -> "1,234,567"    instant(epochSeconds, stepSeconds, utc) -> text
//
// Colours are CSS custom properties, with defaults for light and dark: --chart-allowed, --chart-denied, --chart-shadow,
// --chart-degraded, --chart-true-rate, --chart-limit, --chart-mark, --chart-grid, --chart-ink, --chart-quiet, --chart-card. A page that
// has a switch sets `data-theme="light"` or "dark" on the root element.

const DARK = `--chart-allowed:#35b6d4;--chart-denied:#ff8a4a;--chart-shadow:#b5a1ff;--chart-true-rate:#e8c468;--chart-degraded:#ff8ad8;
  --chart-limit:#ff6b6b;--chart-mark:#ffd166;--chart-grid:#ffffff14;--chart-ink:#e8ecf1;--chart-quiet:#93a0b0;
  --chart-card:#1b222c;`;
const STYLE = `
:where(:root){--chart-allowed:#0b86a4;--chart-denied:#dd5316;--chart-shadow:#7d62cf;--chart-true-rate:#8a6100;--chart-degraded:#b0127f;
  --chart-limit:#c92a2a;--chart-mark:#b07800;--chart-grid:#0f1c2e14;--chart-ink:#16202c;--chart-quiet:#5d6b7c;
  --chart-card:#ffffff;}
@media (prefers-color-scheme:dark){:where(:root:not([data-theme=light])){${DARK}}}
:where(:root[data-theme=dark]){${DARK}}
.chart{position:relative;color:var(--chart-ink);font-variant-numeric:tabular-nums;border-radius:6px;touch-action:pan-y}
.chart:focus-visible{outline:2px solid var(--chart-allowed);outline-offset:4px}
.chart svg{display:block;width:100%;overflow:visible}
.chart text{fill:var(--chart-quiet);font-size:11px;font-family:inherit}
.chart .grid{stroke:var(--chart-grid);shape-rendering:crispEdges}
.chart .area{opacity:.82}.chart .line{fill:none;stroke-width:1.75;stroke-linejoin:round}
.chart .case{fill:none;stroke:var(--chart-card);stroke-width:4;opacity:.6}
.chart .limit{stroke:var(--chart-limit);stroke-width:1.5;stroke-dasharray:5 4}
.chart text.of-limit{fill:var(--chart-limit);font-weight:600;paint-order:stroke;stroke:var(--chart-card);
  stroke-width:3px}
.chart .mark{fill:var(--chart-mark);opacity:.16}.chart .mark-edge{stroke:var(--chart-mark);stroke-width:1.5}
.chart text.of-mark{fill:var(--chart-mark);font-weight:600}
.chart .outlier{fill:var(--chart-quiet)}.chart text.of-outlier{fill:var(--chart-ink);font-weight:600;
  paint-order:stroke;stroke:var(--chart-card);stroke-width:4px;stroke-linejoin:round}
.chart .cross{stroke:var(--chart-quiet);shape-rendering:crispEdges}
.chart .dot{stroke:var(--chart-card);stroke-width:1.5}
.chart-read{position:absolute;top:0;left:0;z-index:2;pointer-events:none;padding:8px 10px;border-radius:8px;
  background:var(--chart-card);color:var(--chart-ink);box-shadow:0 0 0 1px var(--chart-grid),0 6px 24px #00000026;
  font-size:12px;line-height:1.5;white-space:nowrap}
.chart-read[hidden]{display:none}.chart-read b{display:block;font-weight:600}
.chart-read div{display:flex;gap:16px;justify-content:space-between}
.chart-swatch{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:7px}
.chart-legend{display:flex;flex-wrap:wrap;gap:4px 4px;margin:0 0 8px}
.chart-legend button{all:unset;cursor:pointer;font-size:12px;color:var(--chart-quiet);padding:3px 8px;
  border-radius:6px}
.chart-legend button:hover{color:var(--chart-ink)}
.chart-legend button[aria-pressed=false]{opacity:.5;text-decoration:line-through}
.chart-legend button:focus-visible{outline:2px solid var(--chart-allowed)}
.chart-say{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.chart-bars{list-style:none;margin:0;padding:0;font-variant-numeric:tabular-nums;font-size:13px}
.chart-bars li{padding:6px 0}.chart-bars .row{display:flex;gap:12px;align-items:baseline;min-width:0}
.chart-bars .label{flex:0 1 auto;max-width:60%;min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;
  color:var(--chart-ink);font-weight:500;text-align:left}
.chart-bars button.label{all:unset;box-sizing:border-box;flex:0 1 auto;max-width:60%;overflow:hidden;cursor:pointer;
  text-overflow:ellipsis;white-space:nowrap;font-weight:500;border-radius:4px;text-decoration:underline;
  text-decoration-color:var(--chart-grid);text-underline-offset:3px}
.chart-bars button.label:hover{text-decoration-color:currentColor}
.chart-bars button.label:focus-visible{outline:2px solid var(--chart-allowed);outline-offset:2px}
.chart-bars .note{flex:1 999 auto;min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;
  color:var(--chart-quiet);font-size:12px}
.chart-bars .figures{flex:none;margin-left:auto;color:var(--chart-quiet);font-size:12px}
.chart-bars .figures span+span{margin-left:8px}
.chart-bars .track{display:flex;height:6px;margin-top:5px;border-radius:3px;overflow:hidden;
  background:var(--chart-grid)}
.chart-bars .track i{display:block;height:100%}
.chart-bars .empty{color:var(--chart-quiet)}
`;

const NAMED = ["allowed", "degraded", "denied", "shadow", "true-rate"];
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
const DAY = 86400;
const EDGE = { left: 44, right: 12, top: 20, bottom: 24 };

export function timeline(host, data, options = {}) {
  adoptStyle();
  const chart = new Timeline(host, options);
  chart.update(data);
  return { update: (next) => chart.update(next), remove: () => chart.remove() };
}

export function sparkline(host, data, options = {}) {
  adoptStyle();
  const root = html("div", "chart", host);
  root.setAttribute("role", "img");
  const view = svg("svg", { viewBox: "0 0 100 28", preserveAspectRatio: "none", height: 28 }, root);
  const update = (next) => {
    const tiers = stack(next.series);
    const tops = next.times.map((_, i) => Math.max(...tiers.map((tier) => tier.top[i])));
    const most = Math.max(1, usualPeak(tops, 5));
    const x = (i) => (100 * i) / Math.max(1, next.times.length);
    const y = (value) => 27 - (26 * Math.min(value, most)) / most;
    view.replaceChildren();
    for (const tier of tiers) drawTier(view, tier, x, y);
    root.setAttribute("aria-label", summary(next, options));
  };
  update(data);
  return { update };
}

export function bars(host, rows, options = {}) {
  adoptStyle();
  const list = html("ol", "chart-bars", host);
  let shown = "";
  const update = (next) => {
    // Leave unchanged rows alone, so that focus and text selection survive.
    const now = JSON.stringify(next);
    if (now === shown) return;
    shown = now;
    const focused = [...list.children].findIndex((item) => item.contains(document.activeElement));
    const most = Math.max(1, ...next.map(total));
    list.replaceChildren(...next.map((row, index) => bar(row, index, most, options)));
    if (next.length === 0 && options.empty) html("li", "empty", list).textContent = options.empty;
    if (focused >= 0) list.children[Math.min(focused, next.length - 1)]?.querySelector("button")?.focus();
  };
  update(rows);
  return { update };
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  const units = ["", " k", " M", " G", " T", " P"];
  let scaled = Math.abs(value);
  let unit = 0;
  while (scaled >= 999.5 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  const isWhole = scaled >= 100 || (unit === 0 && Number.isInteger(value));
  const digits = isWhole ? 0 : scaled >= 10 ? 1 : Math.min(6, 2 + Math.max(0, Math.floor(-Math.log10(scaled))));
  const text = digits === 0 ? scaled.toFixed(0) : scaled.toFixed(digits).replace(/\.?0+$/, "");
  return (value < 0 ? "−" : "") + text + units[unit];
}

export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

export function instant(seconds, step = 1, utc = false) {
  const zone = utc ? { timeZone: "UTC" } : {};
  const date = new Date(seconds * 1000);
  const at = (form) => new Intl.DateTimeFormat("en-GB", { ...form, ...zone }).format(date);
  if (step >= 28 * DAY) return at({ month: "short", year: "numeric" });
  if (step >= DAY) return at({ day: "numeric", month: "short" });
  if (step >= 60) return at({ hour: "2-digit", minute: "2-digit" });
  return at({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

class Timeline {
  constructor(host, options) {
    this.options = { unit: "", height: 240, legend: true, utc: false, label: "", axis: "", ...options };
    this.hidden = new Set();
    this.at = null;
    this.legend = html("div", "chart-legend", host);
    this.root = html("div", "chart", host);
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "img");
    this.view = svg("svg", { height: this.options.height }, this.root);
    this.plot = svg("g", {}, this.view);
    this.cursor = svg("g", {}, this.view);
    this.read = html("div", "chart-read", this.root);
    this.read.hidden = true;
    this.say = html("div", "chart-say", host);
    this.say.setAttribute("aria-live", "polite");
    this.listen();
  }

  listen() {
    const point = (event) => this.pointAt(event.clientX - this.root.getBoundingClientRect().left);
    this.root.addEventListener("pointermove", point);
    this.root.addEventListener("pointerdown", point);
    this.root.addEventListener("pointerleave", () => this.show(null));
    this.root.addEventListener("blur", () => this.show(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.root);
  }

  remove() {
    this.watch.disconnect();
    for (const part of [this.legend, this.root, this.say]) part.remove();
  }

  update(data) {
    this.data = { limits: [], marks: [], ...data };
    const { times } = data;
    this.step = data.step ?? (times.length > 1 ? times[times.length - 1] - times[times.length - 2] : 1);
    if (data.axis) this.options.axis = data.axis;
    if (data.label) this.options.label = data.label;
    this.draw();
    this.drawLegend();
    this.root.setAttribute("aria-label", `${summary(data, this.options)} Arrow keys read single values.`);
  }

  get series() {
    return this.data.series.filter((series) => !this.hidden.has(series.name));
  }

  /** Computes the scales: x from time, y from value. */
  place(width, most) {
    const { times } = this.data;
    const { height, span = 0 } = this.options;
    const last = times.length ? times[times.length - 1] : Date.now() / 1000;
    const first = Math.min(times.length ? times[0] - this.step : last, last - span);
    const wide = Math.max(1, width - EDGE.left - EDGE.right);
    const high = height - EDGE.top - EDGE.bottom;
    this.first = first;
    this.last = last;
    this.x = (time) => EDGE.left + (wide * (time - first)) / Math.max(1e-9, last - first);
    this.y = (value) => EDGE.top + high - (high * Math.min(value, most)) / most;
  }

  draw() {
    const width = this.root.clientWidth;
    if (!this.data || width === 0) return;
    this.view.setAttribute("viewBox", `0 0 ${width} ${this.options.height}`);
    const tiers = stack(this.series);
    const tops = this.data.times.map((_, i) => Math.max(0, ...tiers.map((tier) => tier.top[i] ?? 0)));
    const { cutOutliers } = this.options;
    const peak = cutOutliers ? usualPeak(tops, cutOutliers) : Math.max(0, ...tops);
    const near = this.data.limits.filter((limit) => limit.value <= 4 * Math.max(peak, 1));
    const ticks = valueTicks(Math.max(peak, ...near.map((limit) => limit.value * 1.08), 1e-9));
    this.place(width, ticks[ticks.length - 1]);
    this.plot.replaceChildren();
    this.drawAxes(width, ticks);
    const x = (i) => this.x(this.data.times[Math.min(i, this.data.times.length - 1)] - this.stepOf(i));
    for (const tier of tiers) drawTier(this.plot, tier, x, this.y);
    this.drawMarks(width);
    this.drawLimits(width, near);
    this.drawOutliers(tops, ticks[ticks.length - 1]);
    this.show(this.at, true);
  }

  /** Returns how long before its time sample `i` begins; the end of the last sample counts as the start of another one. */
  stepOf(i) {
    return i < this.data.times.length ? this.step : 0;
  }

  drawAxes(width, ticks) {
    for (const value of ticks) {
      const y = Math.round(this.y(value));
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }, this.plot);
      const label = { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" };
      svg("text", label, this.plot).textContent = this.options.format?.(value) ?? number(value);
    }
    if (this.options.axis) svg("text", { x: 0, y: 10 }, this.plot).textContent = this.options.axis;
    const { step, at } = timeTicks(this.first, this.last, Math.max(2, Math.floor(width / 85)), this.options.utc);
    for (const time of at) {
      const label = { x: this.x(time), y: this.options.height - 6, "text-anchor": "middle" };
      if (label.x < EDGE.left + 16 || label.x > width - 30) continue;
      svg("text", label, this.plot).textContent = instant(time, step, this.options.utc);
    }
  }

  drawLimits(width, near) {
    for (const limit of this.data.limits) {
      const y = near.includes(limit) ? this.y(limit.value) : EDGE.top - 6;
      const text = near.includes(limit) ? limit.label : `${limit.label} is far above`;
      if (near.includes(limit)) {
        svg("line", { class: "limit", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }, this.plot);
      }
      const label = { class: "of-limit", x: width - EDGE.right, y: y - 5, "text-anchor": "end" };
      svg("text", label, this.plot).textContent = text;
    }
  }

  /** Marks the samples that are higher than the chart, and labels the highest. */
  drawOutliers(tops, most) {
    const peak = Math.max(0, ...tops);
    if (peak <= most) return;
    tops.forEach((value, i) => {
      if (value <= most) return;
      const x = this.x(this.data.times[i] - this.step / 2);
      svg("path", { class: "outlier", d: `M${short(x - 5)} ${EDGE.top}h10l-5 -7z` }, this.plot);
    });
    const x = this.x(this.data.times[tops.indexOf(peak)] - this.step / 2);
    const isLeft = x > this.root.clientWidth / 2;
    const label = { class: "of-outlier", x: x + (isLeft ? -9 : 9), y: EDGE.top - 4, "text-anchor": isLeft ? "end" : "start" };
    svg("text", label, this.plot).textContent = `peak ${valueText(peak, this.options)}`;
  }

  drawMarks(width) {
    const bottom = this.options.height - EDGE.bottom;
    let free = 0;
    for (const mark of [...this.data.marks].sort((a, b) => a.from - b.from)) {
      const from = this.x(mark.from);
      const to = this.x(mark.to ?? mark.from);
      if (to < EDGE.left || from > width - EDGE.right) continue;
      const high = bottom - EDGE.top;
      if (to > from) {
        const box = { class: "mark", x: from, y: EDGE.top, width: Math.max(2, to - from), height: high };
        svg("rect", box, this.plot);
      }
      svg("line", { class: "mark-edge", x1: from, x2: from, y1: EDGE.top - 4, y2: bottom }, this.plot);
      // Overlapping labels are shown only in the read-out.
      const wide = 6.2 * (mark.label ?? "").length;
      const start = Math.min(from, width - EDGE.right - wide);
      if (start < free) continue;
      svg("text", { class: "of-mark", x: start, y: EDGE.top - 8 }, this.plot).textContent = mark.label ?? "";
      free = start + wide + 12;
    }
  }

  drawLegend() {
    if (!this.options.legend) return;
    const names = JSON.stringify(this.data.series.map((series) => [series.name, series.color]));
    if (names === this.named) return;
    this.named = names;
    this.legend.replaceChildren(...this.data.series.map((series) => this.legendButton(series)));
  }

  legendButton(series) {
    const button = html("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(!this.hidden.has(series.name)));
    button.append(swatch(series.color), series.name);
    button.addEventListener("click", () => {
      const shown = this.hidden.delete(series.name);
      if (!shown) this.hidden.add(series.name);
      button.setAttribute("aria-pressed", String(shown));
      this.draw();
    });
    return button;
  }

  pointAt(pixel) {
    const { times } = this.data;
    if (times.length === 0) return;
    const share = (pixel - EDGE.left) / Math.max(1, this.root.clientWidth - EDGE.left - EDGE.right);
    const time = this.first + share * (this.last - this.first);
    const index = times.findIndex((end) => end >= time);
    this.show(times[index < 0 ? times.length - 1 : index]);
  }

  key(event) {
    const { times } = this.data;
    const jumps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return this.show(null);
    if (!(event.key in jumps) || times.length === 0) return;
    event.preventDefault();
    const now = this.at === null ? times.length : this.index();
    const next = Math.min(times.length - 1, Math.max(0, now + jumps[event.key]));
    this.show(times[next]);
    this.say.textContent = [...this.read.children].map((line) => line.textContent).join(", ");
  }

  /** Returns the selected sample, or the oldest if it has left the chart. */
  index() {
    return Math.max(0, this.data.times.findIndex((time) => time >= this.at));
  }

  /** Shows the values at a time. */
  show(at) {
    this.at = at;
    this.cursor.replaceChildren();
    this.read.hidden = at === null || this.data.times.length === 0;
    if (this.read.hidden) return;
    const index = this.index();
    const time = this.data.times[index];
    const x = this.x(time - this.step / 2);
    const ends = { y1: EDGE.top, y2: this.options.height - EDGE.bottom };
    svg("line", { class: "cross", x1: x, x2: x, ...ends }, this.cursor);
    for (const tier of stack(this.series)) {
      if (tier.top[index] === null) continue;
      const dot = svg("circle", { class: "dot", cx: x, cy: this.y(tier.top[index]), r: 3.5 }, this.cursor);
      dot.style.fill = colour(tier.color);
    }
    this.fillRead(index, time);
    const room = this.root.clientWidth - this.read.offsetWidth - 8;
    const left = x + 14 > room ? x - this.read.offsetWidth - 14 : x + 14;
    this.read.style.transform = `translate(${Math.max(0, Math.round(left))}px, ${EDGE.top}px)`;
  }

  fillRead(index, time) {
    const head = html("b");
    const day = this.last - this.first > DAY ? `${instant(time, DAY, this.options.utc)} ` : "";
    head.textContent = day + instant(time, Math.min(this.step, 3600), this.options.utc);
    const lines = [...this.series].reverse().map((series) => {
      const line = html("div");
      const name = html("span", "", line);
      name.append(swatch(series.color), series.name);
      html("span", "", line).textContent = " " + valueText(series.values[index] ?? null, this.options);
      return line;
    });
    const begin = time - this.step;
    const marks = this.data.marks.filter((mark) => mark.from <= time && (mark.to ?? mark.from) >= begin);
    for (const mark of marks.slice(0, 3)) {
      lines.push(html("div"));
      lines[lines.length - 1].textContent = mark.label ?? "";
    }
    this.read.replaceChildren(head, ...lines);
  }
}

/**
 * Returns the highest value to show: below the highest sample if that is more than `factor` times as high as 95 % of
 * the samples.
 */
function usualPeak(values, factor) {
  const known = values.filter((value) => value > 0).sort((one, other) => one - other);
  const peak = known[known.length - 1] ?? 0;
  const usual = known[Math.floor(0.95 * (known.length - 1))] ?? 0;
  return known.length >= 20 && peak > factor * usual ? 1.5 * usual : peak;
}

/** Returns each series with its base and top: stacked series on top of each other, lines from zero. */
function stack(series) {
  let ground = null;
  return series.map(({ values, color, kind = "stack", dashed = false }) => {
    if (kind === "line") return { kind, color, dashed, top: values.map((value) => value ?? null) };
    const base = ground ?? values.map(() => 0);
    const top = values.map((value, i) => base[i] + (value ?? 0));
    ground = top;
    return { kind, color, base, top };
  });
}

/** `x(i)` is the start of sample `i`, and `x(length)` the end of the last one. */
function drawTier(view, tier, x, y) {
  if (tier.kind !== "line") {
    svg("path", { class: "area", d: areaPath(tier, x, y) }, view).style.fill = colour(tier.color);
    return;
  }
  const path = { d: linePath(tier.top, x, y), "vector-effect": "non-scaling-stroke" };
  svg("path", { ...path, class: "case" }, view);
  const line = svg("path", { ...path, class: "line" }, view);
  if (tier.dashed) line.setAttribute("stroke-dasharray", "5 3");
  line.style.stroke = colour(tier.color);
}

function linePath(values, x, y) {
  let pen = "M";
  const parts = values.map((value, i) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const point = `${pen}${short((x(i) + x(i + 1)) / 2)} ${short(y(value))}`;
    pen = "L";
    return point;
  });
  return parts.join("");
}

function areaPath({ base, top }, x, y) {
  if (top.length === 0) return "";
  const stairs = (values, i) => `${short(x(i))} ${short(y(values[i]))}L${short(x(i + 1))} ${short(y(values[i]))}`;
  const there = top.map((_, i) => stairs(top, i));
  const back = base.map((_, i) => `${short(x(i + 1))} ${short(y(base[i]))}L${short(x(i))} ${short(y(base[i]))}`);
  return `M${[...there, ...back.reverse()].join("L")}Z`;
}

function valueTicks(most) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((nice) => nice * power >= rough * 0.999);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => i * step);
}

function timeTicks(first, last, most, utc) {
  const rough = (last - first) / most;
  const step = STEPS.find((step) => step >= rough) ?? [1, 2, 7, 14].map((days) => days * DAY).find((s) => s >= rough);
  if (step === undefined) return monthTicks(first, last, rough);
  const shift = utc ? 0 : new Date(last * 1000).getTimezoneOffset() * 60;
  const at = [];
  for (let time = Math.ceil((first - shift) / step) * step + shift; time <= last; time += step) at.push(time);
  return { step, at };
}

function monthTicks(first, last, rough) {
  const months = [1, 2, 3, 6, 12, 24, 60].find((count) => count * 30 * DAY >= rough) ?? 120;
  const date = new Date(first * 1000);
  const at = [];
  for (let month = Math.ceil(date.getUTCMonth() / months) * months; at.length < 100; month += months) {
    const time = Date.UTC(date.getUTCFullYear(), month) / 1000;
    if (time > last) break;
    if (time >= first) at.push(time);
  }
  return { step: 30 * DAY, at };
}

function bar(row, index, most, options) {
  const item = html("li");
  const line = html("div", "row", item);
  const label = html(options.onSelect ? "button" : "span", "label", line);
  label.textContent = row.label;
  label.title = row.label;
  if (options.onSelect) {
    label.type = "button";
    label.addEventListener("click", () => options.onSelect(row, index));
  }
  if (row.note) html("span", "note", line).textContent = row.note;
  const figures = html("span", "figures", line);
  const track = html("div", "track", item);
  for (const part of row.parts) {
    if (figures.firstChild) figures.append(" ");
    const figure = html("span", "", figures);
    figure.textContent = `${number(part.value)} ${part.name}`;
    const piece = html("i", "", track);
    piece.style.width = `${(100 * part.value) / most}%`;
    piece.style.background = colour(part.color);
  }
  return item;
}

/** Returns a value with its unit. */
function valueText(value, { format, unit = "" }) {
  return format && value !== null ? format(value) : number(value) + unit;
}

function summary(data, options) {
  const { label = "" } = options;
  const { times, series } = data;
  if (times.length === 0) return `${label}: no data yet.`;
  const parts = series.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    if (known.length === 0) return `${name}: unknown`;
    const [last, highest] = [known[known.length - 1], Math.max(...known)].map((value) => valueText(value, options));
    return `${name}: last ${last}, highest ${highest}`;
  });
  return `${label}. ${parts.join("; ")}.`;
}

const total = (row) => row.parts.reduce((sum, part) => sum + part.value, 0);
const short = (value) => Math.round(value * 10) / 10;
const colour = (name = "allowed") => (NAMED.includes(name) ? `var(--chart-${name})` : name);

function swatch(color) {
  const mark = html("span", "chart-swatch");
  mark.style.background = colour(color);
  return mark;
}

function html(tag, name = "", parent = null) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  parent?.append(element);
  return element;
}

function svg(tag, attributes, parent) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

/** A constructed style sheet needs no exception in the Content-Security-Policy. */
function adoptStyle() {
  if (document.adoptedStyleSheets.some((sheet) => sheet.ofCharts)) return;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLE);
  sheet.ofCharts = true;
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}
