// Health: the store, its servers, and the listeners.

import { number, whole } from "./chart.js";
import { atMost, duration, make, put } from "./live.js";

export class Health {
  constructor(live) {
    this.live = live;
    this.before = null;
  }

  update() {
    const { answer } = this.live;
    const { store } = answer;
    put(document.getElementById("store-kind"), kindOf(store));
    fill("store", store.kind === "memory" ? memory(store) : redis(store));
    this.updateServers(store.servers ?? []);
    const up = duration(answer.now - answer.started);
    put(document.getElementById("service-note"), `Version ${answer.version}, up for ${up}`);
    fill("service", service(answer));
    this.updateListeners(answer);
  }

  updateServers(servers) {
    const rows = servers.map((server) => [
      server.address,
      server.trouble ? `unavailable: ${server.trouble}` : "in use",
      duration(server.round_trip),
    ]);
    table("servers", ["Server", "State", "Round trip"], rows);
  }

  /** Computes requests per second from two consecutive responses. */
  updateListeners({ now, started, listeners = [] }) {
    const last = this.before?.started === started ? this.before : null;
    const rows = listeners.map(({ name, connections, requests, latency }) => {
      const then = last?.listeners.find((listener) => listener.name === name)?.requests;
      const known = then !== undefined && now > last.now;
      const speed = known ? Math.round((requests - then) / (now - last.now)) : null;
      const [p50, p99] = [latency?.p50, latency?.p99].map(atMost);
      return [name, whole(connections), `${number(speed)}/s`, p50, p99];
    });
    table("listeners", ["Listener", "Connections", "Requests", "Latency p50", "p99"], rows);
    this.before = { now, started, listeners };
  }
}

function kindOf(store) {
  if (store.kind === "memory") return "In the memory of this process: not shared, and lost when it exits";
  return "Redis or Valkey: shared by all processes that use it";
}

function memory(store) {
  const share = store.max_keys > 0 ? (100 * store.keys) / store.max_keys : 0;
  return [
    ["Keys", whole(store.keys), `${share.toFixed(share < 10 ? 1 : 0)} % of ${number(store.max_keys)}`],
    ["Memory", bytes(store.bytes)],
    ["Overflowed", whole(store.overflowed ?? 0), "decisions on an overflow budget"],
    ["Reservations", whole(store.reservations ?? 0), "open, not settled yet"],
  ];
}

function redis(store) {
  const { breaker, servers, trips, requests, calls } = store;
  const slowest = Math.max(0, ...servers.map((server) => server.round_trip));
  const batch = calls > 0 ? requests / calls : 0;
  return [
    ["Breaker", breaker, breaker === "closed" ? `opened ${whole(store.closed)} ×` : "failure modes apply"],
    ["Round trip", duration(slowest), "last, slowest server"],
    ["Requests per call", Number(batch.toPrecision(3)).toString(), `${number(trips)} round trips`],
    ["Deny cache", whole(store.deny_cache_entries), `${number(store.denied_locally)} calls saved`],
    ["Leases", whole(store.lease_units_outstanding), `unused units, ${number(store.leased)} requests served`],
    ["Timeouts", whole(store.timed_out), "responses after the deadline"],
  ];
}

function service({ policies, revision, reloads_refused: refused, blocked_total: blocked, draining, store }) {
  const degraded = policies.reduce((sum, policy) => sum + (policy.degraded ?? 0), 0);
  return [
    ["Revision", whole(revision), refused > 0 ? `${whole(refused)} failed reloads` : "no failed reloads"],
    ["Degraded", whole(degraded), "decisions by failure modes"],
    ["Blocked keys", whole(blocked), store.kind === "memory" ? "in this process" : "on all servers with this store"],
    ["Accepting requests", draining ? "no" : "yes", draining ? "shutting down" : ""],
  ];
}

/** Fills a list of figures (name, value, note). Writes only what changed. */
function fill(id, figures) {
  const list = document.getElementById(id);
  const names = JSON.stringify(figures.map(([name]) => name));
  if (list.dataset.names !== names) {
    list.dataset.names = names;
    list.replaceChildren(...figures.map(([name]) => {
      return make("div", {}, make("dt", {}, name), make("dd", {}, make("b"), make("span.quiet")));
    }));
  }
  figures.forEach(([, value, note = ""], i) => {
    const [strong, quiet] = list.children[i].querySelector("dd").children;
    put(strong, value);
    put(quiet, note);
  });
}

function table(id, heads, rows) {
  const place = document.getElementById(id);
  const shape = String(rows.length);
  if (place.dataset.shape !== shape) {
    place.dataset.shape = shape;
    const head = make("tr", {}, ...heads.map((name, i) => make(i > 0 ? "th.number" : "th", { scope: "col" }, name)));
    const body = rows.map((row) => make("tr", {}, ...row.map((_, i) => make(i > 0 ? "td.number" : "td"))));
    const whole = make("table.small", {}, make("thead", {}, head), make("tbody", {}, ...body));
    place.replaceChildren(...(rows.length ? [whole] : []));
  }
  rows.forEach((row, y) => row.forEach((text, x) => put(place.querySelector("tbody").children[y].children[x], text)));
}

function bytes(count) {
  if (count === undefined || count === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  const power = count > 0 ? Math.min(3, Math.floor(Math.log2(count) / 10)) : 0;
  return `${Number((count / 1024 ** power).toPrecision(3))} ${units[power]}`;
}
