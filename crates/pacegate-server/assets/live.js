// The data of the page: the last response of /v1/live, and the samples collected from many responses.

const REQUESTS = ["allowed", "denied", "shadow_denied"];
const COUNTS = [...REQUESTS, ...REQUESTS.map((count) => `${count}_units`), "degraded"];
const PERCENTILES = ["p50", "p99"];
/** Seconds of a sample, and the number of samples, for each range that the server keeps. */
export const RANGES = {
  300: { step: 1, kept: 300, text: "Last five minutes, one sample per second, local time" },
  3600: { step: 15, kept: 240, text: "Last hour, averages of 15 seconds, local time" },
  86400: { step: 300, kept: 288, text: "Last 24 hours, averages of five minutes, local time" },
};

/** How the charts look. */
export const RATE_CHART = { unit: "/s", span: 60, height: 260, cutOutliers: 5 };
export const LATENCY_CHART = {
  label: "Decision latency", axis: "latency", format: duration, span: 60, height: 160, cutOutliers: 2,
};

/** Samples of one length. If they are longer than a second, the last one is not complete yet. */
class History {
  constructor({ step, kept }) {
    this.step = step;
    this.kept = kept;
    this.clear();
  }

  clear() {
    this.times = [];
    this.samples = new Map();
    this.latency = { p50: [], p99: [] };
  }

  /** The time of the newest complete sample, for `since`. */
  get since() {
    return this.times[this.times.length - (this.step > 1 ? 2 : 1)] ?? null;
  }

  take({ from, step, length, policies, latency }) {
    if (step > 1) this.truncate(this.times.length - 1);
    const newest = this.times[this.times.length - 1] ?? null;
    // There is a gap after our samples, from a time when the page was hidden. Start over.
    const torn = newest !== null && length > 0 && from > newest + step;
    // The server's clock went back. Start over, so that the next response contains the whole history.
    const behind = newest !== null && length === 0 && from <= newest;
    if (torn || behind) this.clear();
    const skip = this.times.length === 0 ? 0 : Math.max(0, Math.round((newest - from) / step) + 1);
    const taken = Math.max(0, length - skip);
    for (const name of Object.keys(policies)) this.of(name);
    for (const [name, counts] of this.samples) {
      for (const count of COUNTS) {
        const values = policies[name]?.[count] ?? [];
        // A policy added by a reload has fewer samples than the others.
        const whole = [...new Array(length - values.length).fill(0), ...values];
        counts[count] = [...counts[count], ...whole.slice(length - taken)].slice(-this.kept);
      }
    }
    for (const name of PERCENTILES) {
      const values = latency?.[name] ?? new Array(length).fill(null);
      this.latency[name] = [...this.latency[name], ...values.slice(length - taken)].slice(-this.kept);
    }
    const added = Array.from({ length: taken }, (_, i) => from + (skip + i) * step);
    this.times = [...this.times, ...added].slice(-this.kept);
  }

  truncate(length) {
    const cut = (values) => values.splice(Math.max(0, length));
    cut(this.times);
    for (const counts of this.samples.values()) COUNTS.forEach((count) => cut(counts[count]));
    PERCENTILES.forEach((name) => cut(this.latency[name]));
  }

  of(name) {
    if (!this.samples.has(name)) {
      const none = () => new Array(this.times.length).fill(0);
      this.samples.set(name, Object.fromEntries(COUNTS.map((count) => [count, none()])));
    }
    return this.samples.get(name);
  }

  /** Returns a count of one policy per second, or the sum of all. */
  perSecond(name, count) {
    const all = name ? [this.of(name)] : [...this.samples.values()];
    return this.times.map((_, i) => all.reduce((total, counts) => total + counts[count][i], 0) / this.step);
  }
}

export class Live {
  constructor() {
    this.answer = null;
    /** What charts and figures count: "requests" or "units". */
    this.counted = "requests";
    this.recent = new History(RANGES[300]);
    /** What the charts show. */
    this.range = this.recent;
  }

  /** Selects the range of the charts, in seconds. */
  showRange(seconds) {
    this.range = RANGES[seconds].step === 1 ? this.recent : new History(RANGES[seconds]);
  }

  take(answer) {
    if (this.answer !== null && this.answer.started !== answer.started) {
      this.recent.clear();
      this.range.clear();
    }
    this.recent.take(answer.history);
    this.answer = answer;
  }

  /** Returns the recent samples of one policy, or the sum of all, in requests or units per second. */
  counts(name, history = this.recent) {
    const field = (count) => (this.counted === "units" ? `${count}_units` : count);
    return Object.fromEntries(REQUESTS.map((count) => [count, history.perSecond(name, field(count))]));
  }

  /** Returns the data for chart.js; `last` limits it to the newest samples. */
  chart(name, history = this.range, last = history.kept) {
    const { allowed, denied, shadow_denied: shadow } = this.counts(name, history);
    const series = [
      { name: "allowed", values: allowed.slice(-last), color: "allowed" },
      { name: "shadow denied", values: shadow.slice(-last), color: "shadow" },
      { name: "denied", values: denied.slice(-last), color: "denied" },
    ];
    const degraded = history.perSecond(name, "degraded").slice(-last);
    // The server counts requests that failure modes decided, not their units.
    if (this.counted === "requests" && degraded.some((count) => count > 0)) {
      series.push({ name: "degraded (decided by failure modes)", values: degraded, color: "degraded", kind: "line" });
    }
    return { times: history.times.slice(-last), step: history.step, series };
  }

  /** Returns the decision latency in seconds for chart.js. */
  latencyChart() {
    const { latency, times, step } = this.range;
    const series = [
      { name: "p99", values: latency.p99, color: "denied", kind: "line" },
      { name: "p50", values: latency.p50, color: "allowed", kind: "line" },
    ];
    return { times, step, series };
  }
}

/** Returns the average per second over the newest samples. */
export function rate(values, over = 5) {
  const newest = values.slice(-over);
  return newest.length === 0 ? 0 : newest.reduce((sum, value) => sum + value, 0) / newest.length;
}

/** Returns the upper bound of a latency as text. Times above 10 seconds are not measured. */
export function atMost(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds > 10 ? "> 10 s" : `≤ ${duration(seconds)}`;
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
