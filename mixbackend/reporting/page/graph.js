"use strict";
// The graph, its nodes collapsed by region or by module, with colours of one quantity; a click tells what is known.
const overlays = {
  "backend": null,
  "milliseconds": (group) => group.seconds * 1e3,
  "margin to the next backend, ms": (group) => sum(group.regions, (region) => (region.margin_s ?? 0) * 1e3),
  "error, of eager's": (group) => Math.max(0, ...group.regions.map((region) => region.error && region.error.eager_error ? region.error.error / region.error.eager_error : 0)),
  "refusals": (group) => group.refused.length,
};
const sum = (items, value) => items.reduce((total, item) => total + value(item), 0);
const view = { place: 0, by: "", overlay: "backend", drawing: null };

const prefix = (module, depth) => module === "" ? "(no module)" : module.split(".").slice(0, depth).join(".");
const depthOf = (place) => Math.max(1, ...page.graphs[place].nodes.map((node) => node[2].split(".").length));

function collapsed(place, by) {
  const { nodes, edges } = page.graphs[place], regions = told[place].regions;
  const refusals = new Map();
  for (const refusal of told[place].refusals) refusals.set(refusal.node, [...(refusals.get(refusal.node) ?? []), refusal]);
  const name = by === "region" ? (node) => regions[node[4]].id : (node) => prefix(node[2], Number(by.replace("modules, depth ", "")));
  const groups = new Map();
  nodes.forEach((node, index) => {
    const id = name(node);
    if (!groups.has(id)) groups.set(id, { id, nodes: [], seconds: 0, refused: [], shares: {}, numbers: new Set() });
    const group = groups.get(id), backend = regions[node[4]].backend;
    group.nodes.push(index);
    group.seconds += node[5] ?? 0;
    group.refused.push(...(refusals.get(node[0]) ?? []));
    group.shares[backend] = (group.shares[backend] ?? 0) + (node[5] ?? 0) + 1e-12;
    group.numbers.add(node[4]);
  });
  for (const group of groups.values()) group.regions = [...group.numbers].map((number) => regions[number]);
  const links = new Map();
  for (const [from, to] of edges) {
    const ends = [name(nodes[from]), name(nodes[to])];
    if (ends[0] !== ends[1]) links.set(ends.join("\u0000"), ends);
  }
  return { groups: [...groups.values()], links: [...links.values()] };
}

function colours(groups) {
  const measure = overlays[view.overlay];
  if (!measure) return null;
  const most = Math.max(1e-12, ...groups.map(measure));
  return { most, of: (group) => d3.interpolateYlOrRd(0.08 + 0.85 * measure(group) / most) };
}

function drawGraph() {
  const { groups, links } = collapsed(view.place, view.by), scale = colours(groups);
  const longest = Math.max(1e-12, ...groups.map((group) => group.seconds));
  const elements = groups.map((group) => {
    const owners = Object.entries(group.shares).sort((one, other) => other[1] - one[1]);
    const whole = sum(owners, (owner) => owner[1]), data = { id: group.id, group };
    data.label = `${group.id}${view.by === "region" ? " " + owners[0][0] : ""}\n${ms(group.seconds)} ms`;
    data.colour = scale ? scale.of(group) : colourOf(owners[0][0]);
    data.height = 34 + 40 * Math.sqrt(group.seconds / longest);
    owners.slice(0, 4).forEach(([backend, share], place) => { data[`part${place}`] = 100 * share / whole; data[`hue${place}`] = colourOf(backend); });
    for (let place = owners.length; place < 4; place++) { data[`part${place}`] = 0; data[`hue${place}`] = "#fff"; }
    return { data, classes: scale || owners.length === 1 ? "plain" : "mixed" };
  });
  links.forEach(([source, target]) => elements.push({ data: { source, target } }));
  const parts = Object.fromEntries([0, 1, 2, 3].flatMap((place) => [
    [`pie-${place + 1}-background-color`, `data(hue${place})`], [`pie-${place + 1}-background-size`, `data(part${place})`]]));
  if (view.drawing) view.drawing.destroy();
  view.drawing = cytoscape({
    container: document.getElementById("canvas"), elements, minZoom: 0.02, maxZoom: 3,
    layout: { name: "dagre", rankDir: "TB", nodeSep: 14, rankSep: 26, fit: true, padding: 12 },
    style: [
      { selector: "node", style: { shape: "round-rectangle", width: 150, height: "data(height)", "background-color": "data(colour)", "border-width": 1,
        "border-color": "#55606f", label: "data(label)", "text-valign": "center", "text-wrap": "wrap", "text-max-width": 144, "font-size": 11, color: "#11161d",
        "text-outline-color": "#fff", "text-outline-width": 1.5 } },
      { selector: "node.mixed", style: { "pie-size": "100%", ...parts } },
      { selector: "node:selected", style: { "border-width": 4, "border-color": "#0b57d0" } },
      { selector: "edge", style: { width: 1.2, "line-color": "#9aa3af", "target-arrow-color": "#9aa3af", "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier" } },
    ],
  });
  view.drawing.on("tap", "node", (event) => tell(event.target.data("group")));
  const legend = document.getElementById("legend");
  legend.replaceChildren(...(scale ? [`0 to ${scale.most.toPrecision(3)}`] : backends.map((backend) => key(backend))));
  document.getElementById("details").replaceChildren(element("p", { class: "dim" }, "Click a node: refusals, alternatives and ops of it. Drag to move, turn the wheel to zoom."));
}

function tell(group) {
  const graph = page.graphs[view.place], alone = group.regions.length === 1 ? group.regions[0] : null;
  const made = [element("h3", {}, group.id), element("p", {}, ...Object.keys(group.shares).map((backend) => key(backend)), `${group.nodes.length} nodes, ${ms(group.seconds)} ms`)];
  made.push(table(["region", "backend", "#estimated", "#measured", "#margin", "error"], group.regions.map((region) =>
    [region.id, region.backend, ms(region.estimated_s), ms(region.measured_s), ms(region.margin_s), times(region.error)])));
  if (alone && alone.alternatives.length) {
    made.push(element("h2", {}, "Elsewhere"), table(["backend", "#ms more", "because"], alone.alternatives.map((other) =>
      [other.backend, other.change_s === null ? "-" : ms(other.change_s), other.refused ? `refuses ${other.refused.node}: ${other.refused.detail}` : other.change_s === null ? "no legal cut" : ""])));
  }
  if (group.refused.length) {
    const kinds = d3.rollups(group.refused, (items) => items, (item) => item.backend, (item) => item.code);
    made.push(element("h2", {}, "Refusals"), table(["backend", "code", "#nodes", "in words"], kinds.flatMap(([backend, codes]) =>
      codes.map(([code, items]) => [backend, code, String(new Set(items.map((item) => item.node)).size), items[0].detail]))));
  }
  const slowest = [...group.nodes].sort((one, other) => (graph.nodes[other][5] ?? 0) - (graph.nodes[one][5] ?? 0)).slice(0, 60);
  made.push(element("h2", {}, "Ops"), table(["op", "#ms", "module", "line"], slowest.map((place) => {
    const [name, op, module, source, , seconds] = graph.nodes[place];
    return [`${shortOp(op)} %${name}`, ms(seconds), module, source.split("/").slice(-2).join("/")];
  })));
  if (group.nodes.length > 60) made.push(element("p", { class: "dim" }, `${group.nodes.length - 60} cheaper ops are not listed.`));
  document.getElementById("details").replaceChildren(...made);
}
