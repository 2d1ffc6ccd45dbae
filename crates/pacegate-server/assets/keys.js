// The key panels: top keys, lookup, reset and block. Keys are untrusted input: they are only inserted as
// text.

import { bars, instant, whole } from "./chart.js";
import { ask, sentence } from "./api.js";
import { duration, make, put } from "./live.js";

/** The policy of limits that requests carry. The server does not know them, so it cannot look up these keys. */
const INLINE = "inline";
/** Display text of the empty key, of a policy with one counter for all. */
const ALL_CLIENTS = "all clients";
const MAX_ROWS = 10;
const BLOCK_TIMES = [
  [600, "10 minutes"],
  [3600, "1 hour"],
  [86400, "1 day"],
  [30 * 86400, "30 days"],
];

export class Keys {
  constructor(live, say) {
    this.live = live;
    this.say = say;
    this.looked = null;
    this.policies = [];
    const onSelect = (row) => this.select(row);
    const list = (id, empty) => bars(document.getElementById(id), [], { onSelect, empty });
    this.traffic = list("top-traffic", "No keys yet.");
    this.denied = list("top-denied", "No recent denials.");
    this.policy = document.getElementById("lookup-policy");
    this.key = document.getElementById("lookup-key");
    this.answer = document.getElementById("lookup-answer");
    this.blocked = document.getElementById("blocked");
    this.policy.addEventListener("change", () => this.allowEmpty());
    document.getElementById("lookup-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.look(this.policy.value, this.key.value);
    });
  }

  update() {
    const { answer } = this.live;
    const shadow = new Set(answer.policies.filter(({ mode }) => mode === "shadow").map(({ name }) => name));
    const rows = (top) => top.slice(0, MAX_ROWS).map((key) => row(key, shadow));
    this.traffic.update(rows(answer.busiest));
    this.denied.update(rows(answer.most_denied));
    this.offer(answer.policies);
    this.updateBlocked(answer);
    this.updateThresholds(answer);
    const { policy, key, blocked } = this.looked ?? {};
    // For these, only the list of blocks shows whether they are blocked.
    if (policy === INLINE && blocked !== this.isBlocked(policy, key)) this.show(policy, key, null);
    if (this.looked) this.updateDecisions(policy, key);
  }

  /** Fills the list of policies for lookups. */
  offer(policies) {
    this.policies = policies;
    const names = policies.map((policy) => policy.name);
    if (JSON.stringify(names) === this.names) return;
    this.names = JSON.stringify(names);
    const chosen = this.policy.value;
    this.policy.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    if (names.includes(chosen)) this.policy.value = chosen;
    this.allowEmpty();
  }

  /** A policy with one counter for all clients has the empty key. */
  allowEmpty() {
    const policy = this.policies.find(({ name }) => name === this.policy.value);
    const per = policy?.per ?? [];
    this.key.required = per.length > 0;
    this.key.placeholder = per.length > 0 ? per.join(", ") : "one counter for all clients: leave empty";
  }

  updateBlocked(answer) {
    const now = answer.now;
    put(document.getElementById("blocks-note"), blocksNote(answer.store));
    const lines = answer.blocked.map(({ policy, key, until }) => ({ policy, key, until: Math.ceil(until - now) }));
    const shown = JSON.stringify(lines.map(({ policy, key }) => [policy, key]));
    if (shown === this.shownBlocks) {
      this.blocked.querySelectorAll(".left").forEach((left, i) => put(left, duration(lines[i].until)));
      return;
    }
    this.shownBlocks = shown;
    const items = lines.map(({ policy, key, until }) => {
      const lift = { type: "button", onclick: () => this.unblock(policy, key), "aria-label": `Unblock ${key}` };
      const whose = [make("b", {}, key || ALL_CLIENTS), make("span.quiet", {}, policy)];
      const name = make("span.label", { title: key }, ...whose);
      const left = make("span.left.number", {}, duration(until));
      return make("li", {}, name, left, make("button.plain", lift, "Unblock"));
    });
    const more = answer.blocked_total - answer.blocked.length;
    if (more > 0) items.push(make("li.quiet", {}, `and ${whole(more)} more`));
    const none = make("p.quiet", {}, "No blocked keys.");
    this.blocked.replaceChildren(items.length ? make("ul.lines", {}, ...items) : none);
  }

  updateThresholds({ now, policies, thresholds }) {
    const watches = policies.some(({ notify }) => notify?.length > 0);
    document.getElementById("thresholds").hidden = !watches && thresholds.length === 0;
    const items = thresholds.map(({ policy, key, limit, threshold, used, capacity, at }) => {
      const whose = [make("b", {}, key || ALL_CLIENTS), make("span.quiet", {}, `${policy}, ${limit}`)];
      const name = make("span.label", { title: key }, ...whose);
      const units = make("span.number", {}, `${threshold} % (${whole(used)} of ${whole(capacity)})`);
      return make("li", {}, name, units, make("span.quiet.number", {}, `${duration(Math.max(0, now - at))} ago`));
    });
    const none = make("p.quiet", {}, "No key has reached a threshold.");
    document.getElementById("reached").replaceChildren(items.length ? make("ul.lines", {}, ...items) : none);
  }

  /** Looks up a key from a list. */
  select({ policy, key, exact }) {
    if (!exact) {
      this.say("This key is truncated or not valid text, so it cannot be looked up here.", "bad");
      return;
    }
    this.policy.value = policy;
    this.key.value = key;
    this.allowEmpty();
    document.getElementById("lookup").scrollIntoView({ block: "nearest", behavior: "smooth" });
    this.key.focus({ preventScroll: true });
    this.look(policy, key);
  }

  async look(policy, key) {
    if (policy === INLINE) {
      this.show(policy, key, null);
      return;
    }
    try {
      const state = await ask("GET", "v1/state", { query: { policy, key } });
      this.show(policy, key, state);
    } catch (error) {
      this.answer.replaceChildren(make("p.trouble", {}, sentence(error)));
    }
  }

  show(policy, key, state) {
    const blocked = state ? state.source === "blocked" : this.isBlocked(policy, key);
    const name = make("p.subject", {}, make("b", {}, key || ALL_CLIENTS), make("span.quiet", {}, ` in ${policy}`));
    const depends = !blocked && this.policies.some((other) => other.name === policy && other.overrides?.length > 0);
    if (!depends) name.append(" ", standing(state));
    const limits = (state?.limits ?? []).map((limit) => limitLine(limit));
    const times = BLOCK_TIMES.map(([seconds, text]) => make("option", { value: seconds }, text));
    const time = make("select", { "aria-label": "Block for" }, ...times);
    time.value = "3600";
    const button = (kind, text, onclick) => make(`button.${kind}`, { type: "button", onclick }, text);
    const reset = button("plain", "Reset budget", () => this.reset(policy, key));
    const block = button("danger", "Block", () => this.confirmBlock(policy, key, Number(time.value)));
    const lift = button("plain", "Unblock", () => this.unblock(policy, key));
    const acts = make("div.buttons", {}, state ? reset : null, ...(blocked ? [lift] : [time, block]));
    const parts = [name, make("ul.limits", {}, ...limits), acts];
    const own = "These are the base limits. Its overrides depend on the request: try one below.";
    if (depends) parts.splice(1, 0, make("p.quiet", {}, own));
    this.decisions = make("div.decisions");
    this.answer.replaceChildren(...parts, this.decisions);
    this.looked = { policy, key, blocked };
    this.updateDecisions(policy, key);
  }

  /** Shows the recent decisions about the key. They need the same permission as the live data. */
  async updateDecisions(policy, key) {
    if (this.live.answer === null || this.asking) return;
    const place = this.decisions;
    this.asking = true;
    try {
      const { decisions } = await ask("GET", "v1/decisions", { query: { policy, key } });
      const shown = JSON.stringify(decisions);
      if (place.dataset.shown === shown) return;
      place.dataset.shown = shown;
      place.replaceChildren(...decisionTable(decisions));
    } catch {
      place.replaceChildren();
    } finally {
      this.asking = false;
    }
  }

  /** Blocks a key if the user confirms it: a block denies every request of the key. */
  async confirmBlock(policy, key, seconds) {
    const title = `Block “${key || ALL_CLIENTS}” for ${duration(seconds)}?`;
    const text = `Every request with this key is denied in ${policy}, until the block ends or you remove it.`;
    if (await confirmed(title, text, "Block")) await this.block(policy, key, seconds);
  }

  isBlocked(policy, key) {
    return this.live.answer?.blocked.some((block) => block.policy === policy && block.key === key) ?? false;
  }

  reset(policy, key) {
    const done = () => `The counters of “${key}” in ${policy} were reset.`;
    return this.act(() => ask("DELETE", "v1/state", { query: { policy, key } }), done, policy, key);
  }

  block(policy, key, seconds) {
    const done = () => `“${key}” is blocked in ${policy} for ${duration(seconds)}.`;
    return this.act(() => ask("POST", "v1/block", { body: { policy, key, seconds } }), done, policy, key);
  }

  unblock(policy, key) {
    const done = ({ limits }) => `“${key}” ${limits > 0 ? "is no longer" : "was not"} blocked in ${policy}.`;
    return this.act(() => ask("DELETE", "v1/block", { query: { policy, key } }), done, policy, key);
  }

  async act(call, done, policy, key) {
    try {
      this.say(done(await call()));
    } catch (error) {
      this.say(sentence(error), "bad");
      return;
    }
    document.dispatchEvent(new CustomEvent("pacegate-changed"));
    const isShown = this.looked?.policy === policy && this.looked?.key === key;
    if (isShown) await this.look(policy, key);
  }
}

/** Asks for confirmation. Resolves to false if the dialog is closed in any other way. */
function confirmed(title, text, action) {
  const byId = (id) => document.getElementById(`confirm-${id}`);
  const dialog = byId("dialog");
  put(byId("title"), title);
  put(byId("text"), text);
  put(byId("yes"), action);
  dialog.showModal();
  byId("no").focus();
  // Not the event `close`: it is late, and may belong to the previous question.
  return new Promise((done) => {
    const finish = (answer) => {
      dialog.close();
      done(answer);
    };
    byId("yes").onclick = () => finish(true);
    byId("no").onclick = () => finish(false);
    dialog.oncancel = () => done(false);
  });
}

/** Returns where blocks apply, and how long. */
function blocksNote(store) {
  if (store.kind === "memory") return "Blocks apply only to this process and end when it exits.";
  return "Blocks apply to all servers that use this store, within a second.";
}

function decisionTable(decisions) {
  const title = make("h3", {}, "Recent decisions");
  if (decisions.length === 0) return [title, make("p.quiet", {}, "None recorded. The server records a sample.")];
  const heads = ["Time", "Decision", "By", "Cost", "Left"].map((name) => make("th", { scope: "col" }, name));
  const rows = decisions.map((one) => {
    const by = one.source === "blocked" ? `${one.policy}, blocked` : [one.policy, one.limit].filter(Boolean).join(": ");
    const cells = [instant(one.at), decisionBadge(one), by, whole(one.cost), whole(one.remaining)];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  });
  const table = make("table.small", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  return [title, make("div.scroll", {}, table)];
}

function decisionBadge({ allowed, shadow_denied: shadow, degraded, retry_after: retry }) {
  const wait = retry === null ? "" : `, retry in ${duration(retry)}`;
  const text = (allowed ? (shadow ? "shadow denied" : "allowed") : `denied${wait}`) + (degraded ? ", degraded" : "");
  return make(`span.badge.${degraded ? "degraded" : shadow ? "shadow" : allowed ? "good" : "bad"}`, {}, text);
}

function standing(state) {
  if (state === null) return make("span.badge", {}, "requests carry the limits");
  if (state.allowed) return make("span.badge.good", {}, "would be allowed");
  const { retry_after: retry } = state;
  return make("span.badge.bad", {}, retry === null ? "denied" : `denied for ${duration(retry)}`);
}

/** Returns a line with the state of one limit. */
export function limitLine(limit) {
  const capacity = capacityOf(limit.limit);
  const used = capacity > 0 ? Math.min(1, Math.max(0, 1 - limit.remaining / capacity)) : 0;
  const fill = make(used >= 1 ? "i.full" : used >= 0.8 ? "i.near" : "i");
  fill.style.width = `${100 * used}%`;
  const owed = limit.debt > 0 ? `, ${whole(limit.debt)} owed` : "";
  const left = `${whole(limit.remaining)} of ${whole(capacity)} left${owed}`;
  const { retry_after: retry, reset_after: reset } = limit;
  const again = retry === null ? `full again in ${duration(reset)}` : `retry in ${duration(retry)}`;
  const until = limit.window ? `, window until ${new Date(1000 * limit.window.end).toLocaleString()}` : "";
  return make(
    "li",
    {},
    make("span.limit", {}, limit.limit),
    make("div.meter", {}, fill),
    make("span.number", {}, left),
    make("span.quiet", {}, (reset > 0 || retry !== null ? again : "nothing used") + until),
  );
}

/** Returns the capacity of a limit, parsed from its text. */
function capacityOf(limit) {
  const burst = /burst (\d+)/.exec(limit ?? "");
  const amount = /^(\d+)\//.exec(limit ?? "");
  return Number((burst ?? amount)?.[1] ?? 0);
}

/** A policy in shadow mode allows the requests that it would deny. */
function row({ policy, key, allowed, denied, exact }, shadow) {
  const held = shadow.has(policy) ? { name: "shadow denied", color: "shadow" } : { name: "denied", color: "denied" };
  const parts = [{ name: "allowed", value: allowed, color: "allowed" }, { ...held, value: denied }];
  return { label: key || ALL_CLIENTS, key, policy, parts, exact, note: policy };
}
