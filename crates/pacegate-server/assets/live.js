// The data of the page: the last response of /v1/live, and five minutes of samples collected from many
// responses.

const KEPT = 300;
const REQUESTS = ["allowed", "denied", "shadow_denied"];
const COUNTS = [...REQUESTS, ...REQUESTS.map((count) => `${count}_units`)];
const PERCENTILES = ["p50", "p99"];

export class Live {
  constructor() {
    this.answer = null;
    /** What charts and figures count: "requests" or "units". */
    this.counted = "requests";
    this.clear();
  }

  clear() {
    this.times = [];
    this.samples = new Map();
    this.latency = { p50: [], p99: [] };
  }

  /** The time of the newest sample, for `since`. */
  get since() {
    return this.times.length ? this.times[this.times.length - 1] : null;
  }

  take(answer) {
    const { from, step, length, policies, latency } = answer.history;
    const restarted = this.answer !== null && this.answer.started !== answer.started;
    // There is a gap after our samples, from a time when the page was hidden. Start over.
    const torn = this.since !== null && length > 0 && from > this.since + step;
    // The server's clock went back. Start over, so that the next response contains the whole history.
    const behind = this.since !== null && length === 0 && from <= this.since;
    if (restarted || torn || behind) this.clear();
    const skip = this.since === null ? 0 : Math.max(0, Math.round((this.since - from) / step) + 1);
    const taken = Math.max(0, length - skip);
    for (const name of Object.keys(policies)) this.of(name);
    for (const [name, counts] of this.samples) {
      for (const count of COUNTS) {
        const values = policies[name]?.[count] ?? [];
        // A policy added by a reload has fewer samples than the others.
        const whole = [...new Array(length - values.length).fill(0), ...values];
        counts[count] = [...counts[count], ...whole.slice(length - taken)].slice(-KEPT);
      }
    }
    for (const name of PERCENTILES) {
      const values = latency?.[name] ?? new Array(length).fill(null);
      this.latency[name] = [...this.latency[name], ...values.slice(length - taken)].slice(-KEPT);
    }
    const added = Array.from({ length: taken }, (_, i) => from + (skip + i) * step);
    this.times = [...this.times, ...added].slice(-KEPT);
    this.answer = answer;
  }

  of(name) {
    if (!this.samples.has(name)) {
      const none = () => new Array(this.times.length).fill(0);
      this.samples.set(name, Object.fromEntries(COUNTS.map((count) => [count, none()])));
    }
    return this.samples.get(name);
  }

  /** Returns the field of a count: of requests or of units. */
  field(count) {
    return this.counted === "units" ? `${count}_units` : count;
  }

  /** Returns the samples of one policy, or the sum of all, in requests or units. */
  counts(name) {
    const all = name ? [this.of(name)] : [...this.samples.values()];
    const sum = (count) => this.times.map((_, i) => all.reduce((total, counts) => total + counts[count][i], 0));
    return Object.fromEntries(REQUESTS.map((count) => [count, sum(this.field(count))]));
  }

  /** Returns the data for chart.js; `last` limits it to the newest samples. */
  chart(name, last = KEPT) {
    const { allowed, denied, shadow_denied: shadow } = this.counts(name);
    const series = [
      { name: "allowed", values: allowed.slice(-last), color: "allowed" },
      { name: "shadow denied", values: shadow.slice(-last), color: "shadow" },
      { name: "denied", values: denied.slice(-last), color: "denied" },
    ];
    return { times: this.times.slice(-last), step: 1, series };
  }

  /** Returns the decision latency in seconds for chart.js. */
  latencyChart() {
    const series = [
      { name: "p99", values: this.latency.p99, color: "denied", kind: "line" },
      { name: "p50", values: this.latency.p50, color: "allowed", kind: "line" },
    ];
    return { times: this.times, step: 1, series };
  }
}

/** Returns the average per second over the newest samples. */
export function rate(values, over = 5) {
  const newest = values.slice(-over);
  return newest.length === 0 ? 0 : newest.reduce((sum, value) => sum + value, 0) / newest.length;
}

/** Returns the upper bound of a latency as text. */
export function atMost(seconds) {
  return seconds === null || seconds === undefined ? "–" : `≤ ${duration(seconds)}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  const units = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, unit] = units[first];
  const whole = Math.floor(seconds / size);
  const [lesser, small] = units[first + 1] ?? [1, ""];
  const rest = Math.floor((seconds - whole * size) / lesser);
  return rest > 0 && small ? `${whole} ${unit} ${rest} ${small}` : `${whole} ${unit}`;
}

/** Creates an element: `make("p.quiet", { title: "…" }, "text", child)`. Strings are inserted as text, never as HTML. */
export function make(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets text only if it changed, so that selections and screen readers are not disturbed. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
