"use strict";
// What is read rather than looked at: summary and hints, regions, what changed since another report, events.
function drawSummary() {
  const graph = told[view.place], rows = [];
  const shares = d3.rollups(graph.regions, (items) => sum(items, secondsOf), (region) => region.backend).sort((one, other) => other[1] - one[1]);
  const whole = sum(shares, (item) => item[1]) || 1;
  rows.push(element("div", {}, `${graph.id}: ${graph.phase}, ${graph.nodes} nodes in ${graph.regions.length} regions, ${graph.dynamic ? "dynamic" : "static"} shapes, estimated ${ms(graph.estimated_s)} ms`));
  rows.push(element("div", { class: "bar" }, ...shares.map(([backend, seconds]) => element("span", { title: `${backend} ${ms(seconds)} ms`, style: `width:${100 * seconds / whole}%;background:${colourOf(backend)}` }))));
  rows.push(element("div", {}, ...shares.map(([backend, seconds]) => key(backend, `${backend} ${ms(seconds)} ms (${(100 * seconds / whole).toFixed(0)}%)`))));
  rows.push(...page.graphs[view.place].sentences.map((text) => element("div", { class: "dim" }, text)));
  rows.push(...page.warnings.map((text) => element("div", { class: "warn" }, text)));
  for (const hint of page.hints.filter((item) => item.graph === graph.id).slice(0, 8)) {
    const shown = element("a", { onclick: () => showRegion(hint.regions[0]) }, " show");
    rows.push(element("div", { class: "hint" }, hint.text, hint.regions.length ? shown : null));
  }
  document.getElementById("summary").replaceChildren(...rows);
}

function drawRegions() {
  const regions = told[view.place].regions;
  const rows = regions.map((region) => [region.id, region.backend, String(region.nodes.length),
    Object.entries(region.ops).slice(0, 5).map(([op, count]) => shortOp(op) + (count > 1 ? ` x${count}` : "")).join(", "),
    region.modules.slice(0, 3).join(", "), ms(region.estimated_s), ms(region.measured_s), ms(region.margin_s), times(region.error),
    region.reused_from ? `same as ${region.reused_from}` : region.cached ? "from cache" : "here"]);
  document.getElementById("tab-regions").replaceChildren(table(
    ["region", "backend", "#nodes", "ops", "modules", "#estimated ms", "#measured ms", "#margin ms", "error", "compiled"], rows, (place) => showRegion(regions[place].id)));
}

function drawCompare() {
  const box = document.getElementById("tab-compare");
  if (!page.against) { box.replaceChildren(element("p", { class: "dim" }, "No other report was given: `mixbackend explain MODEL --html FILE --against EARLIER.json` compares with one that `--json` wrote.")); return; }
  const mine = told[view.place], theirs = page.against.graphs.find((graph) => graph.id === mine.id);
  if (!theirs) { box.replaceChildren(element("p", { class: "dim" }, `The other report has no graph ${mine.id}.`)); return; }
  const homes = (graph) => new Map(graph.regions.flatMap((region) => region.nodes.map((node) => [node, region])));
  const here = homes(mine), before = homes(theirs), moved = [];
  for (const [node, region] of here) {
    const other = before.get(node);
    if (!other || other.backend !== region.backend) moved.push([node, other ? other.backend : "not there", region.backend]);
  }
  const missing = [...before.keys()].filter((node) => !here.has(node)).map((node) => [node, before.get(node).backend, "not there"]);
  const per = (graph) => d3.rollup(graph.regions, (items) => sum(items, secondsOf), (region) => region.backend);
  const now = per(mine), then = per(theirs), total = (graph) => sum(graph.regions, secondsOf);
  const rows = [...new Set([...now.keys(), ...then.keys()])].sort().map((backend) => [backend, ms(then.get(backend)), ms(now.get(backend)), ms((now.get(backend) ?? 0) - (then.get(backend) ?? 0))]);
  rows.push(["all", ms(total(theirs)), ms(total(mine)), ms(total(mine) - total(theirs))]);
  const changes = d3.rollups([...moved, ...missing], (items) => items.map((item) => item[0]), (item) => item[1], (item) => item[2]);
  box.replaceChildren(element("h2", {}, "Milliseconds by backend"), table(["backend", "#before", "#now", "#change"], rows),
    element("h2", {}, `Nodes that moved: ${moved.length + missing.length} of ${here.size}`),
    table(["from", "to", "#nodes", "which"], changes.flatMap(([from, targets]) => targets.map(([to, nodes]) =>
      [from, to, String(nodes.length), nodes.slice(0, 12).join(", ") + (nodes.length > 12 ? ", ..." : "")]))));
}

function drawEvents() {
  const events = page.report.events.map((event) => [event.kind, event.graph, event.region, event.backend, event.detail]);
  const missing = page.unavailable.map(([name, reason]) => [name, reason]);
  document.getElementById("tab-events").replaceChildren(
    events.length ? table(["event", "graph", "region", "backend", "what happened"], events) : element("p", { class: "dim" }, "Everything went as planned."),
    ...(missing.length ? [element("h2", {}, "Backends that cannot be used here"), table(["backend", "reason"], missing)] : []));
  document.getElementById("text").textContent = page.text;
}
