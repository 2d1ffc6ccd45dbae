// Try a request: shows the decision of each policy without charging anything.

import { apiKey, ask, sentence } from "./api.js";
import { limitLine } from "./keys.js";
import { duration, make } from "./live.js";
import { condition } from "./policies.js";

export class Try {
  constructor() {
    this.rows = document.getElementById("try-attributes");
    this.domain = document.getElementById("try-domain");
    this.answer = document.getElementById("try-answer");
    this.answer.append(make("p.quiet.hint", {}, "Type the attributes of a request, as your service would send them."));
    document.getElementById("try-add").addEventListener("click", () => this.add().focus());
    document.getElementById("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.explain();
    });
  }

  /** Suggests the attribute names that policies use; the first response also creates the first rows. */
  offer(policies) {
    const asked = policies.filter((policy) => !policy.envoy);
    const names = new Set(asked.flatMap((policy) => [
      ...(policy.match ?? []).map((match) => match.attribute),
      ...(policy.per ?? []),
    ]));
    fill("attribute-names", [...names].slice(0, 50));
    fill("domains", [...new Set(policies.map((policy) => policy.domain).filter(Boolean))].slice(0, 50));
    if (this.rows.children.length === 0) [...names].slice(0, 3).forEach((name) => this.add(name));
    if (this.rows.children.length === 0) this.add("key");
  }

  add(name = "") {
    const field = { type: "text", autocomplete: "off", spellcheck: false };
    const who = name || "the attribute";
    const offer = { placeholder: "name", list: "attribute-names" };
    const names = make("input", { ...field, ...offer, value: name, "aria-label": "Name" });
    const value = make("input", { ...field, "aria-label": `Value of ${who}`, placeholder: "value" });
    names.addEventListener("input", () => value.setAttribute("aria-label", `Value of ${names.value}`));
    const remove = { type: "button", "aria-label": `Remove ${who}`, onclick: () => row.remove() };
    const row = make("div.attribute", {}, names, value, make("button.plain", remove, "×"));
    this.rows.append(row);
    return name ? value : names;
  }

  /** Returns the typed attributes. Rows without a value are ignored. */
  request() {
    const pairs = [...this.rows.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value));
    const attributes = Object.fromEntries(pairs.filter(([name, value]) => name !== "" && value !== ""));
    const domain = this.domain.value.trim();
    return domain && domain !== "default" ? { domain, attributes } : { attributes };
  }

  async explain() {
    const request = this.request();
    try {
      this.show(request, await ask("POST", "v1/explain", { body: request }));
    } catch (error) {
      this.answer.replaceChildren(make("p.trouble", {}, sentence(error)));
    }
  }

  show(request, explanation) {
    const covering = explanation.policies.filter((policy) => policy.covers);
    const others = explanation.policies.filter((policy) => !policy.covers);
    const steps = make("ol.steps", {}, ...covering.map((policy) => step(policy, explanation)));
    const parts = [verdict(explanation, covering), steps];
    if (others.length > 0) {
      const hidden = explanation.omitted > 0 ? `, and ${explanation.omitted} more` : "";
      const list = make("ol.steps", {}, ...others.map((policy) => step(policy, explanation)));
      const title = `${others.length}${hidden} that ${others.length === 1 ? "does" : "do"} not match`;
      const open = covering.length === 0 || others.length <= 3;
      parts.push(make("details", { open }, make("summary", {}, title), list));
    }
    parts.push(make("p.quiet", {}, "Run this check for real (charges the limits):"));
    parts.push(make("pre", {}, make("code", {}, curl(request))));
    this.answer.replaceChildren(...parts);
  }
}

function fill(id, values) {
  const list = document.getElementById(id);
  if (JSON.stringify(values) === list.dataset.values) return;
  list.dataset.values = JSON.stringify(values);
  list.replaceChildren(...values.map((value) => make("option", { value })));
}

/** Returns a shell command for this check. It does not contain the API key. */
export function curl(request) {
  const body = JSON.stringify(request).replaceAll("'", "'\\''");
  const address = new URL("v1/check", location.href).href;
  const key = apiKey() ? '-H "Authorization: Bearer $PACEGATE_KEY" ' : "";
  return `curl ${key}-H 'Content-Type: application/json' -d '${body}' ${address}`;
}

function verdict(explanation, covering) {
  if (covering.length === 0) {
    return make("p.verdict.good", {}, make("b", {}, "Allowed."), " No policy matches, so the request is not limited.");
  }
  if (explanation.allowed) {
    const speaks = explanation.policy ? ` ${explanation.policy} is the tightest policy, which the response reports.` : "";
    return make("p.verdict.good", {}, make("b", {}, "Allowed."), speaks);
  }
  const binding = covering.find((policy) => policy.policy === explanation.policy);
  const waits = (binding?.limits ?? []).map((limit) => limit.retry_after).filter((wait) => wait !== null);
  const again = waits.length ? ` Retry in ${duration(Math.max(...waits))}.` : "";
  return make("p.verdict.bad", {}, make("b", {}, "Denied"), ` by ${explanation.policy}.${again}`);
}

function step(policy, explanation) {
  const denies = policy.covers && policy.limits.some((limit) => !limit.allowed);
  const kind = !policy.covers ? "skip" : denies ? (policy.mode === "shadow" ? "shadow" : "bad") : "good";
  const lines = [make("div.policy-name", {}, make("b", {}, policy.policy), outcome(policy, denies, explanation))];
  if (policy.unmet) lines.push(make("p", {}, unmet(policy.unmet)));
  if (policy.key?.length) {
    const key = policy.key.map((part) => part ?? "(missing)").join(", ");
    lines.push(make("p", {}, "Key: ", make("code", {}, key)));
  }
  if (policy.override) lines.push(make("p", {}, `Override ${policy.override} replaces the base limits.`));
  if (policy.limits.some((limit) => limit.source === "blocked")) {
    lines.push(make("p", {}, "An operator has blocked the key."));
  }
  if (policy.covers && policy.limits.length === 0) lines.push(make("p", {}, "No limit."));
  if (policy.limits.length) lines.push(make("ul.limits", {}, ...policy.limits.map((limit) => limitLine(limit))));
  return make(`li.${kind}`, {}, ...lines);
}

function outcome(policy, denies, explanation) {
  if (!policy.covers) return make("span.badge", {}, "does not match");
  if (denies && policy.mode === "shadow") return make("span.badge.shadow", {}, "would deny (shadow mode)");
  if (denies) return make("span.badge.bad", {}, "denies");
  return make("span.badge.good", {}, explanation.policy === policy.policy ? "allows, tightest" : "allows");
}

function unmet({ condition: wanted, value }) {
  const has = value === null ? `the request has no ${wanted.attribute}` : `${wanted.attribute} is “${value}”`;
  return `Requires ${condition(wanted)}; ${has}.`;
}
