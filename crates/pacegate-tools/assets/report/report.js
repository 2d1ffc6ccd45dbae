// The report of `pacegate simulate`, drawn from the data in the page. Keys and names are untrusted: they only
// become text nodes, never HTML.

const report = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("report");

function make(tag, { className = "", text = "" } = {}, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function share(part, all) {
  if (!all || !part) return "0 %";
  const percent = (100 * part) / all;
  if (percent < 0.0001) return "< 0.0001 %";
  const digits = percent < 0.01 ? 4 : percent < 10 ? 2 : 1;
  // Only the whole is 100 %.
  return part >= all ? "100 %" : `${Math.min(percent, 99.9).toFixed(digits)} %`;
}

const steps = [[86400, "day"], [3600, "hour"], [60, "min"], [1, "s"]];
function lasting(seconds) {
  const [length, unit] = steps.find(([length]) => seconds >= length && seconds % length === 0) ?? [1, "s"];
  const count = seconds / length;
  return count === 1 ? unit : `${count} ${unit}`;
}

function roughly(seconds) {
  const [length, unit] = steps.find(([length]) => seconds >= 2 * length - 1) ?? [1, "s"];
  const count = Math.round(seconds / length);
  return `${count} ${unit}${unit.length > 1 && unit !== "min" && count !== 1 ? "s" : ""}`;
}

const when = (text) => text.replace("T", " ").replace("Z", " UTC");
const whose = (per) => (per.length ? `per ${per.join(" and ")}` : "shared by all clients");
const missed = (policy) => policy.denied + policy.shadow_denied;

function timesOf(columns) {
  return columns.allowed.map((_, i) => columns.start + (i + 1) * columns.step);
}

function card(title, hint, ...children) {
  const section = make("section", { className: "card" });
  if (title) section.append(make("h3", { text: title }));
  if (hint) section.append(make("p", { className: "hint", text: hint }));
  section.append(...children);
  return section;
}

function figure(name, value, note, className = "") {
  return make("div", { className: "card" },
    make("dt", { text: name }),
    make("dd", {}, make("div", { className: `value ${className}`, text: value }), make("div", { className: "note", text: note })));
}

function table(head, rows) {
  const line = (cells, tag) => make("tr", {}, ...cells.map((text) => make(tag, { text: String(text) })));
  return make("div", { className: "scroll" },
    make("table", {}, make("thead", {}, line(head, "th")), make("tbody", {}, ...rows.map((row) => line(row, "td")))));
}

function heading() {
  const { traffic, finding } = report;
  document.title = `Pacegate: ${finding}`;
  return make("header", {},
    make("div", { className: "brand", text: "Pacegate simulate" }),
    make("h1", { text: finding }),
    ...(traffic.files?.length > 1
      ? traffic.files.map((file) => make("p", { text: `${file.name}: ${whole(file.requests)} requests` }))
      : [make("p", { text: traffic.source })]),
    make("p", { text: `${when(traffic.from)} to ${when(traffic.to)}, ${roughly(traffic.seconds)}` }));
}

function notes() {
  const { traffic } = report;
  const lines = [...report.notes];
  if (traffic.malformed) {
    lines.push(`${whole(traffic.malformed)} of ${whole(traffic.lines)} lines could not be parsed: ${traffic.malformed_examples.join("; ")}`);
  }
  if (traffic.late) lines.push(`${whole(traffic.late)} lines were out of order by more than --window; each counts at the time of the line before it.`);
  if (lines.length === 0) return [];
  return [make("section", { className: "card notes" }, ...lines.map((text) => make("p", { text })))];
}

function suggestion() {
  const { suggestion } = report;
  if (!suggestion) return [];
  const section = make("section", { className: "card suggestion" });
  if (!suggestion.limit) {
    const text = suggestion.any ? "Every limit meets the target, no client sends more" : "No limit of this form meets the target";
    section.append(make("h3", { text: `${text}: ${suggestion.target}` }));
    return [section];
  }
  const tried = [`${suggestion.limit} ${suggestion.summary}`];
  if (suggestion.next) tried.push(`${suggestion.next[0]} ${suggestion.next_summary}`);
  const { headroom } = suggestion;
  tried.push(headroom
    ? `Headroom: ${headroom.share}. The busiest client without denials sends ${whole(headroom.peak)} of ${whole(headroom.amount)} in any ${headroom.period}.`
    : "Headroom: none. Every client has denied requests.");
  section.append(
    make("h3", { text: `Suggested for policy ${suggestion.policy}, ${whose(suggestion.per)}` }),
    make("div", { className: "limit", text: suggestion.limit }),
    make("ul", {}, ...tried.map((text) => make("li", { text }))),
    make("p", { className: "hint", text: `${suggestion.next ? "Both" : "It was"} replayed over all traffic; ${suggestion.tried} limits tried in ${suggestion.passes} passes.` }),
    make("pre", { text: suggestion.yaml }));
  return [section];
}

function comparison() {
  const { variants } = report;
  if (variants.length < 2) return [];
  const total = (variant) => (variant.policies.length < 2 ? [] : [[
    "", "total", whole(variant.allowed), whole(missed(variant)), share(missed(variant), variant.requests), "", "", "",
  ]]);
  const rows = variants.flatMap((variant) => variant.policies.map((policy, place) => [
    place === 0 ? variant.name : "",
    policy.name,
    whole(policy.allowed),
    whole(missed(policy)),
    share(missed(policy), policy.requests),
    `${whole(policy.keys.touched)} of ${whole(policy.keys.seen)}`,
    `${whole(policy.peak_admitted)} of ${whole(policy.amount)}/${policy.period}`,
    whole(policy.bursts),
  ]).concat(total(variant)));
  const head = ["", "policy", "allowed", "denied", "share", "clients denied", "most admitted", "bursts"];
  const section = card("Comparison", "Most admitted: by one client within any one period. Bursts: above the limit, across a window boundary.", table(head, rows));
  const host = make("div");
  const graph = card("Denied over time", `Requests per ${lasting(variants[0].timeline.step)}`, host);
  const colors = ["var(--chart-denied)", "var(--chart-allowed)", "var(--chart-shadow)", "var(--chart-true-rate)", "var(--chart-limit)"];
  later(() => timeline(host, {
    times: timesOf(variants[0].timeline),
    step: variants[0].timeline.step,
    series: variants.map((variant, i) => ({
      name: variant.name, values: variant.timeline.denied, kind: "line", color: colors[i % colors.length], dashed: i >= colors.length,
    })),
  }, { label: "Denied over time", utc: true, height: 200 }));
  return [section, graph, ...report.changes.map(change)];
}

function change(change) {
  const [before, after] = change.denied;
  const word = after === before ? "the same number" : `${whole(Math.abs(after - before))} ${after > before ? "more" : "fewer"}`;
  const section = card(`From ${change.from} to ${change.to}: ${word} denied`);
  const rows = change.policies.flatMap((policy) =>
    [...policy.worse, ...policy.better].map((key) => [
      key.key, policy.name, whole(key.requests), whole(key.denied[0]), whole(key.denied[1]), key.denied[1] > key.denied[0] ? "worse" : "better",
    ]));
  if (rows.length) section.append(table(["key", "policy", "requests", "denied before", "after", ""], rows));
  return section;
}

function figures(variant) {
  const { traffic } = report;
  const list = make("dl", { className: "summary" },
    figure("Requests", number(variant.requests), `peak: ${whole(traffic.peak_second)} per second, ${whole(traffic.peak_minute)} per minute`),
    figure("Allowed", number(variant.allowed), share(variant.allowed, variant.requests), "allowed"),
    figure("Denied", number(variant.denied), share(variant.denied, variant.requests), variant.denied ? "denied" : ""));
  if (variant.shadow_denied) list.append(figure("Would be denied", number(variant.shadow_denied), "by policies in shadow mode", "denied"));
  const [only] = variant.policies;
  if (variant.policies.length === 1) {
    const about = only.keys.exact ? "" : "about ";
    list.append(figure("Clients denied", `${about}${whole(only.keys.touched)}`, `${share(only.keys.touched, only.keys.seen)} of ${whole(only.keys.seen)}`));
  } else {
    list.append(figure("Not limited", number(variant.unlimited), "no policy covers them"));
  }
  return list;
}

function policySection(policy) {
  const head = make("div", { className: "policy-head" }, make("h2", { text: policy.name }));
  const limits = policy.limits.join(", ");
  const algorithm = limits.includes(policy.algorithm) ? "" : policy.algorithm;
  for (const text of [limits, algorithm, whose(policy.per), policy.shadow ? "shadow mode" : ""]) {
    if (text) head.append(make("span", { className: "pill", text }));
  }
  return [head, overTime(policy), trueRate(policy), keyCards(policy)];
}

function overTime(policy) {
  const { timeline: columns } = policy;
  const host = make("div");
  const series = [{ name: "allowed", values: columns.allowed, color: "allowed" }];
  if (policy.denied || !policy.shadow) series.push({ name: "denied", values: columns.denied, color: "denied" });
  if (columns.shadow_denied) series.push({ name: "would be denied", values: columns.shadow_denied, color: "shadow" });
  later(() => timeline(host, { times: timesOf(columns), step: columns.step, series }, { label: "Requests over time", utc: true, height: 230 }));
  const elsewhere = policy.denied_elsewhere ? ` ${whole(policy.denied_elsewhere)} more were within this limit but denied by another policy.` : "";
  return card("Requests over time", `Per ${lasting(columns.step)}; ${share(missed(policy), policy.requests)} of ${whole(policy.requests)} denied.${elsewhere}`, host);
}

function trueRate(policy) {
  const { timeline: columns } = policy;
  if (!columns.admitted && !columns.asked) return "";
  const host = make("div");
  const nothing = columns.allowed.map(() => 0);
  const series = [
    { name: "requested", values: columns.asked ?? nothing, color: "denied", kind: "line", dashed: true },
    { name: "admitted", values: columns.admitted ?? nothing, color: "true-rate", kind: "line" },
  ];
  const marks = apart(policy.worst_bursts, columns).map((burst) => ({
    from: burst.time, label: `${whole(burst.admitted)} within one ${policy.period} by ${burst.key.slice(0, 40)}`,
  }));
  later(() => timeline(host, {
    times: timesOf(columns), step: columns.step, series, marks,
    limits: [{ value: policy.amount, label: `limit ${policy.limits[0]}` }],
  }, { label: "Peak rate of the busiest client", utc: true, height: 230 }));
  const bursts = policy.bursts
    ? ` ${whole(policy.bursts)} bursts above the limit within one ${policy.period}, across fixed-window boundaries; the largest are marked.`
    : "";
  return card("Peak rate of the busiest client", `The most that one client requested and was admitted within any one ${policy.period}.${bursts}`, host);
}

/** Returns the largest bursts that are not too close to a larger one, in order of time. */
function apart(bursts, columns) {
  const room = (columns.step * columns.allowed.length) / 10;
  const marked = [];
  for (const burst of bursts) {
    if (marked.every((other) => Math.abs(other.time - burst.time) >= room)) marked.push(burst);
  }
  return marked.sort((a, b) => a.time - b.time);
}

function keyCards(policy) {
  const worst = make("div");
  const parts = (key) => [
    { name: "allowed", value: key.allowed, color: "allowed" },
    { name: "denied", value: key.denied + key.shadow_denied, color: key.shadow_denied ? "shadow" : "denied" },
  ];
  const note = (key) => `peak ${whole(key.peak_second)}/s, ${whole(key.peak_asked)}/${policy.period}`;
  later(() => bars(worst, policy.denied_most.map((key) => ({ label: key.key, note: note(key), parts: parts(key) })), { empty: "None." }));
  const busiest = table(["client", "requests", "denied", `peak/${policy.period}`, "admitted"], policy.busiest.map((key) => [
    key.key, whole(key.requests), share(key.denied + key.shadow_denied, key.requests), whole(key.peak_asked), whole(key.peak_admitted),
  ]));
  const about = policy.keys.exact ? "" : "about ";
  return make("div", { className: "two" },
    card("Most denied clients", `${about}${whole(policy.keys.touched)} of ${whole(policy.keys.seen)} clients (${share(policy.keys.touched, policy.keys.seen)}) have denied requests.`, worst),
    card("Busiest clients", "Peaks within any one period of the limit.", busiest));
}

// Charts measure their container, so they are drawn after it is in the page.
let waiting = [];
const later = (draw) => waiting.push(draw);
function drawAll() {
  const draws = waiting;
  waiting = [];
  for (const draw of draws) draw();
}

function details() {
  const host = make("div");
  const show = (variant) => {
    host.replaceChildren(figures(variant), ...variant.policies.flatMap(policySection));
    drawAll();
  };
  const { variants } = report;
  if (variants.length < 2) return [host, () => show(variants[0])];
  const tabs = make("div", { className: "tabs" });
  tabs.setAttribute("role", "tablist");
  const buttons = variants.map((variant) => {
    const button = make("button", { text: variant.name });
    button.type = "button";
    button.setAttribute("role", "tab");
    button.addEventListener("click", () => select(variant, button));
    return button;
  });
  const select = (variant, button) => {
    for (const other of buttons) other.setAttribute("aria-selected", String(other === button));
    show(variant);
  };
  tabs.append(...buttons);
  return [make("div", {}, tabs, host), () => select(variants[0], buttons[0])];
}

const [detail, start] = details();
main.replaceChildren(
  heading(), ...suggestion(), ...notes(), ...comparison(), detail,
  make("footer", { text: "Replayed in virtual time with the engine of Pacegate: the server would have made the same decisions. Times are UTC." }));
drawAll();
start();
