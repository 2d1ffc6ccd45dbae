// The table of policies with their rates.

import { number, sparkline, whole } from "./chart.js";
import { make, put, rate } from "./live.js";

const MAX_ROWS = 50;
const SPARK_SAMPLES = 120;
const USUAL_FAILURE = "local";
const COLUMNS = ["Policy", "Limit", "Allowed", "Denied", "Shadow", "Last 2 minutes", "Budget used"];

export class Policies {
  constructor(live, onShow) {
    this.live = live;
    this.onShow = onShow;
    this.rows = new Map();
    this.filter = document.getElementById("policy-filter");
    this.filter.addEventListener("input", () => this.update());
    this.body = make("tbody");
    this.heads = COLUMNS.map((name) => make("th", { scope: "col" }, name));
    this.more = make("p.quiet", { hidden: true });
    const table = make("table.policies", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
    document.getElementById("policy-list").append(table, this.more);
  }

  update() {
    const { answer } = this.live;
    if (answer === null) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const found = answer.policies.filter((policy) => searched(policy).includes(wanted));
    const shown = found.slice(0, MAX_ROWS);
    put(document.getElementById("revision"), about(answer));
    [2, 3, 4].forEach((i) => put(this.heads[i], `${COLUMNS[i]} ${this.live.counted}`));
    this.filter.parentElement.hidden = answer.policies.length < 6 && wanted === "";
    const rows = shown.map((policy) => this.row(policy));
    if (rows.length !== this.body.children.length || rows.some((row, i) => this.body.children[i] !== row.root)) {
      this.body.replaceChildren(...rows.map((row) => row.root));
    }
    rows.forEach((row, i) => row.update(shown[i], this.live));
    const left = found.length - shown.length;
    this.more.hidden = left === 0 && found.length > 0;
    const none = "No policy matches the filter.";
    put(this.more, left > 0 ? `${left} more: use the filter to see them.` : none);
  }

  row(policy) {
    // A reload may change a policy.
    const what = JSON.stringify([policy.name, policy.domain, policy.match, policy.per, policy.limits, policy.mode]);
    if (this.rows.get(policy.name)?.what !== what) {
      this.rows.set(policy.name, new Row(policy, what, this.onShow));
    }
    return this.rows.get(policy.name);
  }
}

class Row {
  constructor(policy, what, onShow) {
    this.what = what;
    const show = { type: "button", title: "Show in the chart", onclick: () => onShow(policy.name) };
    const name = make("div.policy-name", {}, make("button.link", show, policy.name), ...badges(policy));
    const match = make("div.chips", {}, ...describe(policy).map((text) => make("span.chip", {}, text)));
    const algorithm = algorithmOf(policy);
    const limits = limitsOf(policy).map((limit) => make("div.limit", {}, limit.replace(` ${algorithm}`, "")));
    this.cells = ["allowed", "denied", "shadow"].map((kind) => make(`td.number.of-${kind}`, { "data-name": kind }));
    const spark = make("td.spark");
    this.spark = sparkline(spark, { times: [], series: [] }, { label: `${policy.name}, decisions per second` });
    this.fill = make("i");
    this.used = make("span.number");
    const meter = make("div.meter", {}, this.fill);
    const title = "Usage of the fullest among the recently busiest keys. Above 100 %: units that it owes";
    const budget = make("td.budget", { title }, meter, this.used);
    const first = make("th.what", { scope: "row" }, name, match);
    const limit = make("td.limits", {}, ...limits, make("div.quiet", {}, algorithm));
    this.root = make("tr", {}, first, limit, ...this.cells, spark, budget);
    this.texts = this.cells.map((cell) => {
      const [fast, all] = [make("div"), make("div.quiet")];
      cell.append(fast, all);
      return { fast, all };
    });
  }

  update(policy, live) {
    const counts = live.counts(policy.name);
    ["allowed", "denied", "shadow_denied"].forEach((count, i) => {
      const [requests, units] = [policy[count], policy[`${count}_units`]];
      put(this.texts[i].fast, `${number(rounded(rate(counts[count])))}/s`);
      put(this.texts[i].all, number(live.counted === "units" ? units : requests));
      this.cells[i].title = `${whole(requests)} requests, ${whole(units)} units since the start`;
      this.cells[i].classList.toggle("none", policy[count] === 0);
    });
    this.spark.update(live.chart(policy.name, live.recent, SPARK_SAMPLES));
    const known = policy.used !== null && policy.used !== undefined;
    const share = known ? Math.min(1, Math.max(0, policy.used)) : 0;
    this.fill.style.width = `${100 * share}%`;
    this.fill.className = share >= 1 ? "full" : share >= 0.8 ? "near" : "";
    put(this.used, known ? `${Math.round(100 * Math.max(0, policy.used))} %` : "–");
  }
}

export function limitsOf(policy) {
  const limits = (policy.limits ?? []).map((limit) => (typeof limit === "string" ? limit : limit.limit));
  return limits.length ? limits : ["carried by requests"];
}

function algorithmOf(policy) {
  const own = (policy.limits ?? []).map((limit) => limit.algorithm).filter(Boolean);
  return [...new Set(policy.algorithm ? [policy.algorithm] : own)].join(", ");
}

function badges(policy) {
  const badges = [];
  if (policy.mode === "shadow") badges.push(make("span.badge.shadow", { title: "Counts but never denies" }, "shadow"));
  if (policy.domain && policy.domain !== "default") badges.push(make("span.badge", { title: "Domain" }, policy.domain));
  if (policy.failure && policy.failure !== USUAL_FAILURE) {
    badges.push(make("span.badge", { title: "Failure mode if the store is unreachable" }, `fails ${policy.failure}`));
  }
  return badges;
}

/** Describes the match and the key of a policy in a few words. */
export function describe(policy) {
  if (policy.envoy) return ["Envoy descriptors"];
  const match = (policy.match ?? []).map(condition);
  if (match.length === 0 && policy.per) match.push("every request");
  const per = policy.per?.length ? [`per ${policy.per.join(", ")}`] : policy.per ? ["one counter for all clients"] : [];
  const other = policy.overrides?.length ?? 0;
  const more = other > 0 ? [`${other} override${other > 1 ? "s" : ""}`] : [];
  return [...match, ...per, ...more];
}

export function condition({ attribute, is, values }) {
  if (values === undefined) return `${attribute} = ${is}`;
  if (is === "present") return `has ${attribute}`;
  if (is === "absent") return `no ${attribute}`;
  const signs = { "one-of": values.length > 1 ? "is one of" : "=", glob: "~", cidr: "in" };
  const listed = values.slice(0, 4).join(", ") + (values.length > 4 ? `, and ${values.length - 4} more` : "");
  return `${attribute} ${signs[is] ?? is} ${listed}`;
}

function searched(policy) {
  return [policy.name, policy.domain, ...describe(policy), ...limitsOf(policy)].join(" ").toLowerCase();
}

function about({ policies_total: count, revision }) {
  return `${count} ${count === 1 ? "policy" : "policies"}, revision ${revision} of the configuration`;
}

function rounded(value) {
  return value >= 10 ? Math.round(value) : Math.round(value * 10) / 10;
}
