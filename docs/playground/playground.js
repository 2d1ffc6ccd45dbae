// The playground: passes drawn or pasted traffic to the engine, and shows its decisions.

const COLUMNS = 60;
const MICROS = 1_000_000;
const MAX_REQUESTS = 100_000;
const ALGORITHMS = ["fixed-window", "sliding-window", "sliding-log", "token-bucket"];
const byId = (id) => document.getElementById(id);

const engine = await load();
const options = { utc: true, height: 190 };
const counts = timeline(byId("decisions"), empty(), { ...options, axis: "requests", label: "Requests" });
const left = timeline(byId("remaining"), empty(), { ...options, height: 110, legend: false, label: "Units left" });

/** The number of drawn requests in each column, or null if the traffic was pasted. */
let columns = new Array(COLUMNS).fill(0);
/** The requests: microseconds since the start, and a cost. */
let requests = [];
/** The column that the arrow keys change. */
let cursor = 0;

start();

function start() {
  byId("limit-form").addEventListener("submit", (event) => event.preventDefault());
  byId("limit-form").addEventListener("input", ({ target }) => (["cost", "duration"].includes(target.id) ? take() : run()));
  byId("scale").addEventListener("change", drawTraffic);
  byId("use-paste").addEventListener("click", usePaste);
  byId("copy").addEventListener("click", copyPolicy);
  for (const button of document.querySelectorAll("[data-pattern]")) {
    button.addEventListener("click", () => usePattern(button.dataset.pattern));
  }
  const canvas = byId("draw");
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drawAt(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && drawAt(event));
  canvas.addEventListener("keydown", drawByKey);
  new ResizeObserver(drawTraffic).observe(canvas);
  usePattern("edge");
}

/** Compiles the engine, which is embedded in this page as base64. */
async function load() {
  const bytes = Uint8Array.from(atob(MODULE), (char) => char.charCodeAt(0));
  const { instance } = await WebAssembly.instantiate(bytes);
  const { memory, reserve, decide, output_bytes: length } = instance.exports;
  return (text) => {
    const input = new TextEncoder().encode(text);
    const at = reserve(input.length);
    new Uint8Array(memory.buffer, at, input.length).set(input);
    const from = decide();
    const output = new TextDecoder().decode(new Uint8Array(memory.buffer, from, length()));
    if (output.startsWith("-")) throw new RangeError(output.slice(1));
    return output.slice(1);
  };
}

/** Returns the decisions of the engine, and the period in microseconds. */
function decisions(limit) {
  const lines = requests.map(({ at, cost }) => `${at} ${cost}`);
  const [head, ...decided] = engine([limit, ...lines].join("\n")).trimEnd().split("\n");
  const [period, capacity] = head.split(" ").map(Number);
  const list = decided.map((line) => {
    const [allowed, remaining, retry] = line.split(" ");
    return { allowed: allowed === "1", remaining: Number(remaining), retry: retry === "-" ? null : Number(retry) };
  });
  return { period, capacity, list };
}

function limitText(algorithm) {
  const burst = byId("burst").value;
  const parts = [`${byId("amount").value}/${byId("period").value.trim()}`, algorithm];
  if (algorithm === "token-bucket" && burst) parts.push(`burst ${burst}`);
  return parts.filter((part) => part !== "fixed-window").join(" ");
}

function duration() {
  return Number(byId("duration").value) * MICROS;
}

/** Turns the columns into requests, evenly spread within each column. */
function take() {
  if (columns !== null) {
    const width = duration() / COLUMNS;
    const cost = Math.max(1, Number(byId("cost").value) || 1);
    const spread = (count, column) =>
      Array.from({ length: count }, (_, i) => ({ at: Math.floor(width * (column + (i + 0.5) / count)), cost }));
    requests = columns.flatMap(spread).slice(0, MAX_REQUESTS);
  }
  drawTraffic();
  run();
}

function run() {
  const algorithm = byId("algorithm").value;
  byId("burst-field").hidden = algorithm !== "token-bucket";
  const limit = limitText(algorithm);
  byId("policy").textContent = policy(limit);
  try {
    show(decisions(limit));
    compare(algorithm);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    byId("verdict").className = "bad";
    byId("verdict").textContent = `Invalid: ${error.message}.`;
    byId("compared").replaceChildren();
    counts.update(empty());
    left.update(empty());
  }
}

function show({ list, period }) {
  const admitted = list.filter(({ allowed }) => allowed).length;
  const longest = list.reduce((most, { retry }) => Math.max(most, retry ?? 0), 0);
  const share = list.length ? ` (${Math.round((100 * admitted) / list.length)} %)` : "";
  const wait = longest > 0 ? `, longest wait ${seconds(longest)}` : "";
  const most = mostIn(list, period);
  byId("verdict").className = "";
  byId("verdict").textContent = `${whole(admitted)} of ${whole(list.length)} requests admitted${share}, ` +
    `at most ${whole(most)} units in any ${seconds(period)}${wait}.`;
  const width = duration() / COLUMNS;
  const times = columnEnds();
  const [allowed, denied, units] = [0, 0, null].map((value) => new Array(times.length).fill(value));
  list.forEach((decision, i) => {
    const column = Math.min(times.length - 1, Math.floor(requests[i].at / width));
    (decision.allowed ? allowed : denied)[column] += 1;
    units[column] = decision.remaining;
  });
  const series = [
    { name: "admitted", values: allowed, color: "allowed" },
    { name: "denied", values: denied, color: "denied" },
  ];
  counts.update({ times, step: width / MICROS, series });
  left.update({ times, step: width / MICROS, series: [{ name: "units left", values: units, color: "true-rate", kind: "line" }] });
  globalThis.playground = { requests, admitted: list.map(({ allowed }) => allowed) };
}

function compare(chosen) {
  const rows = ALGORITHMS.map((algorithm) => {
    const row = document.createElement("tr");
    if (algorithm === chosen) row.className = "chosen";
    const { list, period } = decisions(limitText(algorithm));
    const admitted = list.filter(({ allowed }) => allowed).length;
    const cells = [algorithm, admitted, list.length - admitted, mostIn(list, period)];
    row.append(...cells.map((value, i) => {
      const cell = document.createElement("td");
      if (i > 0) cell.className = "number";
      cell.textContent = i > 0 ? whole(value) : value;
      return cell;
    }));
    return row;
  });
  byId("compared").replaceChildren(...rows);
}

/** Returns the largest number of units that were admitted within any span as long as the period. */
function mostIn(list, period) {
  const admitted = requests.filter((_, i) => list[i].allowed);
  let [first, sum, most] = [0, 0, 0];
  for (const { at, cost } of admitted) {
    sum += cost;
    while (admitted[first].at <= at - period) sum -= admitted[first++].cost;
    most = Math.max(most, sum);
  }
  return most;
}

function policy(limit) {
  return `policies:\n  - name: example\n    per: [ip]\n    limit: ${limit}\n`;
}

async function copyPolicy() {
  const button = byId("copy");
  try {
    await navigator.clipboard.writeText(byId("policy").textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("policy"));
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function usePattern(name) {
  const period = COLUMNS / 3;
  const patterns = {
    edge: (i) => (Math.abs(i - period + 0.5) < 2 ? 6 : i > 1.5 * period ? 1 : 0),
    steady: () => 2,
    wave: (i) => Math.round(3 + 3 * Math.sin(i / 4)),
    none: () => 0,
  };
  columns = Array.from({ length: COLUMNS }, (_, i) => patterns[name](i));
  take();
}

function usePaste() {
  const parsed = byId("paste").value.split("\n").map(parseRequest).filter((request) => request !== null);
  if (parsed.length === 0) return;
  const first = parsed.reduce((least, { at }) => Math.min(least, at), Infinity);
  const isRelative = parsed.every(({ relative }) => relative);
  requests = parsed.map(({ at, cost }) => ({ at: Math.round((at - (isRelative ? 0 : first)) * MICROS), cost }));
  requests = requests.sort((one, other) => one.at - other.at).slice(0, MAX_REQUESTS);
  columns = null;
  const last = requests[requests.length - 1].at;
  const lengths = [...byId("duration").options].map(({ value }) => value);
  byId("duration").value = lengths.find((length) => length * MICROS > last) ?? lengths[lengths.length - 1];
  take();
}

/** Returns the request of a line, with its time in seconds, or null. */
function parseRequest(line) {
  const plain = /^\s*(\d+(?:\.\d+)?)(?:[\s,]+(\d+))?\s*$/.exec(line);
  if (plain) return { at: Number(plain[1]), cost: Math.max(1, Number(plain[2] ?? 1)), relative: true };
  const log = /\[(\d+)\/(\w+)\/(\d+):([\d:]+) ([+-]\d{4})\]/.exec(line);
  const iso = /\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-]\d\d:?\d\d)?/.exec(line);
  const text = log ? `${log[1]} ${log[2]} ${log[3]} ${log[4]} ${log[5]}` : iso?.[0];
  const at = text === undefined ? NaN : Date.parse(text) / 1000;
  return Number.isNaN(at) ? null : { at, cost: 1, relative: false };
}

/** Sets the column under the pointer to the height of the pointer. */
function drawAt(event) {
  const box = byId("draw").getBoundingClientRect();
  const column = Math.floor((COLUMNS * (event.clientX - box.left)) / box.width);
  const share = 1 - (event.clientY - box.top) / box.height;
  setColumn(column, Math.round(share * Number(byId("scale").value)));
}

function drawByKey(event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const [along, up] = moves[event.key];
  cursor = Math.min(COLUMNS - 1, Math.max(0, cursor + along));
  setColumn(cursor, histogram()[cursor] + up);
}

function setColumn(column, count) {
  if (column < 0 || column >= COLUMNS) return;
  columns ??= histogram();
  columns[column] = Math.max(0, Math.min(Number(byId("scale").value), count));
  cursor = column;
  take();
}

/** Returns the number of requests in each column. */
function histogram() {
  if (columns !== null) return columns;
  const counted = new Array(COLUMNS).fill(0);
  for (const { at } of requests) counted[Math.min(COLUMNS - 1, Math.floor((COLUMNS * at) / duration()))] += 1;
  return counted;
}

function drawTraffic() {
  const canvas = byId("draw");
  const ratio = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  pen.scale(ratio, ratio);
  const most = Number(byId("scale").value);
  histogram().forEach((count, i) => {
    const bar = Math.min(height, (height * count) / most);
    pen.fillStyle = style.getPropertyValue(i === cursor && document.activeElement === canvas ? "--denied" : "--accent");
    pen.fillRect((i * width) / COLUMNS + 1, height - Math.max(bar, 2), width / COLUMNS - 2, Math.max(bar, 2));
  });
  const how = columns === null ? "Pasted" : "Drag in the chart to draw";
  byId("traffic-note").textContent =
    `${how}. ${whole(requests.length)} requests in ${seconds(duration())}, ${seconds(duration() / COLUMNS)} per column.`;
}

function columnEnds() {
  return Array.from({ length: COLUMNS }, (_, i) => ((i + 1) * duration()) / COLUMNS / MICROS);
}

function empty() {
  return { times: [], series: [] };
}

function seconds(micros) {
  const units = [[86_400 * MICROS, "d"], [3_600 * MICROS, "h"], [60 * MICROS, "min"], [MICROS, "s"], [1_000, "ms"]];
  const [size, unit] = units.find(([size]) => micros >= size) ?? [1, "µs"];
  return `${Number((micros / size).toPrecision(3))} ${unit}`;
}
