// The page: fetches data once per second and passes it to the panels.

import { number, timeline, whole } from "./chart.js";
import { Refused, Unreachable, apiKey, ask, setApiKey } from "./api.js";
import { Keys } from "./keys.js";
import { LATENCY_CHART, Live, RANGES, RATE_CHART, atMost, make, put, rate } from "./live.js";
import { Policies } from "./policies.js";
import { Health } from "./store.js";
import { Try, curl } from "./try.js";

const EVERY = 1000;
const RANGE_EVERY = 5000;
const THEMES = { "": ["◐", "same as system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const TILES = { all: "All", allowed: "Allowed", denied: "Denied", shadow: "Shadow denied", latency: "Decision latency" };
const byId = (id) => document.getElementById(id);

const live = new Live();
const policies = new Policies(live, show);
const keys = new Keys(live, say);
const trying = new Try();
const health = new Health(live);
const chart = timeline(byId("timeline"), live.chart(""), RATE_CHART);
const latencyChart = timeline(byId("latency-timeline"), live.latencyChart(), LATENCY_CHART);
const tiles = makeTiles();

let timer = null;
let asking = false;
let unreachable = false;
let refused = null;
let quiet = null;

start();

function start() {
  byId("shown").addEventListener("change", draw);
  byId("counted").addEventListener("change", ({ target }) => {
    live.counted = target.value;
    draw();
  });
  byId("range").addEventListener("change", ({ target }) => {
    live.showRange(target.value);
    pollRange().then(draw, failed);
  });
  byId("key-open").addEventListener("click", () => openKeys());
  byId("key-close").addEventListener("click", () => byId("key-dialog").close());
  byId("key-forget").addEventListener("click", forgetKey);
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key-input").value.trim());
  });
  byId("key-input").addEventListener("input", ({ target }) => {
    const fits = /^[ -~]*$/.test(target.value.trim());
    target.setCustomValidity(fits ? "" : "An API key consists of printable ASCII characters.");
  });
  byId("theme").addEventListener("click", nextTheme);
  showTheme();
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));
  document.addEventListener("pacegate-changed", poll);
  poll();
}

async function poll() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  try {
    const { since } = live.recent;
    const query = since === null ? {} : { since };
    live.take(await ask("GET", "v1/live", { query }));
    await pollRange();
    unreachable = false;
    refused = null;
    draw();
  } catch (error) {
    failed(error);
  } finally {
    asking = false;
    showState();
    if (!document.hidden) timer = setTimeout(poll, EVERY);
  }
}

/** Fetches the samples of a longer range, as often as a chart of this range changes visibly. */
async function pollRange() {
  const { range, recent } = live;
  const isRecent = range.times.length > 0 && Date.now() - range.fetched < RANGE_EVERY;
  if (range === recent || isRecent) return;
  const { step, since } = range;
  const { history } = await ask("GET", "v1/live", { query: since === null ? { step } : { step, since } });
  range.take(history);
  range.fetched = Date.now();
}

function failed(error) {
  unreachable = error instanceof Unreachable;
  if (unreachable) return;
  if (!(error instanceof Refused)) throw error;
  const isNew = refused?.status !== error.status;
  refused = error;
  if (error.status === 401 && isNew) openKeys();
  if (error.status === 403 && isNew) offerPolicies();
}

/** Users without access to live data can still try requests and look up keys. */
async function offerPolicies() {
  const { policies: some } = await ask("GET", "v1/policies").catch(() => ({ policies: [] }));
  trying.offer(some);
  keys.offer(some);
}

function draw() {
  const { answer } = live;
  if (answer === null) return;
  updateShown(answer);
  const name = byId("shown").value;
  const title = live.counted === "units" ? "Units per second" : "Requests per second";
  put(byId("timeline-title"), title);
  put(byId("timeline-note"), RANGES[byId("range").value].text);
  put(byId("latency-range"), RANGES[byId("range").value].text);
  chart.update({ ...live.chart(name), label: title, axis: title.toLowerCase() });
  latencyChart.update(live.latencyChart());
  updateTiles(name);
  policies.update();
  keys.update();
  trying.offer(answer.policies);
  health.update();
  const idle = answer.policies.every((policy) => policy.allowed + policy.denied + policy.shadow_denied === 0);
  byId("first-steps").hidden = !idle;
  byId("timeline").hidden = idle;
  byId("latency").hidden = idle;
  if (idle) put(byId("first-curl"), curl(example(answer)));
  put(byId("server"), location.host);
  // If the server has no API keys, hide the button.
  byId("key-open").hidden = !answer.keys_configured && apiKey() === "";
}

/** Returns a request that the first policy covers, except policies for Envoy. */
function example({ policies: all }) {
  const first = all.find((policy) => !policy.envoy);
  const wanted = (first?.match ?? []).filter((match) => match.values?.length);
  const pairs = wanted.map((match) => [match.attribute, match.values[0]]);
  for (const name of first?.per ?? []) pairs.push([name, name === "ip" ? "203.0.113.9" : "alice"]);
  const request = { attributes: Object.fromEntries(pairs) };
  return first?.domain && first.domain !== "default" ? { domain: first.domain, ...request } : request;
}

function makeTiles() {
  const made = {};
  for (const [id, title] of Object.entries(TILES)) {
    const [name, value, note] = [make("span.name", {}, title), make("b", { id: `now-${id}` }, "–"), make("span.quiet")];
    byId("tiles").append(make(`div.tile.of-${id}`, {}, name, value, note));
    made[id] = { name, value, note };
  }
  return made;
}

function updateTiles(name) {
  const counts = live.counts(name);
  const chosen = live.answer.policies.filter((policy) => name === "" || policy.name === name);
  const total = (counts) => chosen.reduce((sum, policy) => counts.reduce((all, count) => all + policy[count], sum), 0);
  const kinds = { allowed: ["allowed"], denied: ["denied"], shadow: ["shadow_denied"] };
  kinds.all = Object.values(kinds).flat();
  for (const [id, fields] of Object.entries(kinds)) {
    const perSecond = fields.reduce((sum, count) => sum + rate(counts[count]), 0);
    const digits = perSecond >= 10 ? Math.round(perSecond) : Math.round(perSecond * 10) / 10;
    const units = total(fields.map((count) => `${count}_units`));
    put(tiles[id].name, `${TILES[id]} ${live.counted}`);
    put(tiles[id].value, `${number(digits)}/s`);
    put(tiles[id].note, `${amount(total(fields), "request")}, ${amount(units, "unit")} since the start`);
  }
  const listeners = live.answer.listeners.filter(({ latency }) => latency?.p99 != null);
  const slowest = (name) => (listeners.length ? Math.max(...listeners.map(({ latency }) => latency[name])) : null);
  put(tiles.latency.value, atMost(slowest("p99")));
  put(tiles.latency.note, `p99, and p50 ${atMost(slowest("p50"))}, in the last minute`);
}

function amount(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function updateShown({ policies: all }) {
  const select = byId("shown");
  const names = JSON.stringify(all.map((policy) => policy.name));
  if (select.dataset.names === names) return;
  select.dataset.names = names;
  const chosen = select.value;
  const options = all.map((policy) => make("option", { value: policy.name }, policy.name));
  select.replaceChildren(make("option", { value: "" }, "all policies"), ...options);
  if (all.some((policy) => policy.name === chosen)) select.value = chosen;
}

function show(name) {
  byId("shown").value = byId("shown").value === name ? "" : name;
  draw();
  byId("traffic").scrollIntoView({ block: "start", behavior: "smooth" });
}

/** Updates the status at the top and the alerts. An alert is written only once, so that screen readers read it once. */
function showState() {
  const { answer } = live;
  const alerts = [];
  let [state, text] = ["good", "live"];
  if (unreachable) {
    [state, text] = ["bad", "unreachable"];
    alerts.push(["bad", "Server unreachable, retrying. The page shows the last data."]);
  } else if (refused?.status === 401) {
    [state, text] = ["wait", "key needed"];
    alerts.push(["warn", "This server requires an API key. Set one with “API key” at the top."]);
  } else if (refused?.status === 403 && refused.kind !== "host") {
    [state, text] = ["wait", "admin key needed"];
    alerts.push(["warn", "This API key can only try requests. Live statistics, resets and blocks need an admin key."]);
  } else if (refused !== null) {
    [state, text] = ["bad", "rejected"];
    alerts.push(["bad", `The server rejected the request: ${refused.message}.`]);
  } else if (answer !== null) {
    alerts.push(...troubles(answer));
    if (alerts.length > 0) [state, text] = ["wait", "needs attention"];
  }
  byId("state").dataset.state = state;
  put(byId("state"), text);
  const shown = JSON.stringify(alerts);
  if (byId("alerts").dataset.shown === shown) return;
  byId("alerts").dataset.shown = shown;
  byId("alerts").replaceChildren(...alerts.map(([kind, line]) => make(`p.alert.${kind}`, {}, line)));
}

function troubles({ store, reload_complaint: complaint, draining }) {
  const alerts = [];
  if (store.reachable === false) alerts.push(["bad", `Store unreachable: ${store.outage}.`]);
  if (complaint) alerts.push(["warn", `Configuration reload failed, keeping the previous one: ${complaint}`]);
  if (draining) alerts.push(["warn", "The server is shutting down: it accepts no new connections."]);
  return alerts;
}

function openKeys() {
  const dialog = byId("key-dialog");
  byId("key-input").value = apiKey();
  if (!dialog.open) dialog.showModal();
}

function useKey(key) {
  setApiKey(key);
  byId("key-dialog").close();
  refused = null;
  say("API key set.");
  poll();
}

/** Forgets the key and the data that was fetched with it. */
function forgetKey() {
  setApiKey("");
  location.reload();
}

/** Shows a message for a few seconds. */
function say(text, kind = "good") {
  clearTimeout(quiet);
  byId("said").className = `toast shown ${kind}`;
  byId("said").textContent = text;
  quiet = setTimeout(() => (byId("said").className = "toast"), 6000);
}

function nextTheme() {
  const root = document.documentElement;
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(root.dataset.theme ?? "") + 1) % names.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  try {
    localStorage.setItem("pacegate-theme", next);
  } catch {
    // Without storage, the theme applies until the page is closed.
  }
  showTheme();
}

function showTheme() {
  const [sign, name] = THEMES[document.documentElement.dataset.theme ?? ""];
  put(byId("theme"), sign);
  byId("theme").setAttribute("aria-label", `Colours: ${name}`);
  byId("theme").title = `Colours: ${name}`;
}
