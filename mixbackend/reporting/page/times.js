"use strict";
// Time as flame graphs: by module, by backend, and of compiling.
function tree(place, path) {
  const graph = page.graphs[place], regions = told[place].regions, root = { name: "all", value: 0, children: new Map() };
  for (const node of graph.nodes) {
    const seconds = node[5] ?? 0, backend = regions[node[4]].backend;
    let here = root;
    here.value += seconds;
    for (const name of path(node, regions[node[4]])) {
      if (!here.children.has(name)) here.children.set(name, { name, value: 0, children: new Map(), shares: {} });
      here = here.children.get(name);
      here.value += seconds;
      here.shares[backend] = (here.shares[backend] ?? 0) + seconds;
    }
  }
  const plain = (item) => ({ name: item.name, value: item.value, backend: item.shares ? d3.greatest(Object.entries(item.shares), (entry) => entry[1])[0] : null,
    children: [...item.children.values()].filter((child) => child.value > 0).map(plain) });
  return plain(root);
}

function drawFlame(id, data, colour, sorted) {
  const box = document.getElementById(id);
  box.replaceChildren();
  if (!data.value) { box.append(element("p", { class: "dim" }, "Nothing was timed or estimated.")); return; }
  const total = data.value;
  const chart = flamegraph.default().width(Math.max(600, box.clientWidth || document.querySelector("main").clientWidth - 10)).cellHeight(19).minFrameSize(2)
    .inverted(true).selfValue(false).transitionDuration(0).sort(sorted).title("")
    .setColorMapper((frame) => colour(frame.data))
    .label((frame) => `${frame.data.name}: ${ms(frame.data.value)} ms, ${(100 * frame.data.value / total).toFixed(1)}%`)
    .getName((frame) => `${frame.data.name} ${ms(frame.data.value)}`);
  d3.select(box).datum(data).call(chart);
  // The widths of new frames grow for a while whatever duration is set: they are set at once.
  d3.select(box).selectAll("g").each(function () { d3.select(this).select("rect").interrupt().attr("width", this.getAttribute("width")); });
}

const byBackend = (item) => item.backend ? colourOf(item.backend) : "#dfe3e8";
const shades = ["#f6b26b", "#ffd966", "#f9cb9c", "#ffe599", "#e6b8af"];
function byName(item) {
  const part = item.name.split("/").slice(-2)[0];
  if (part.includes("mixbackend") || /^(contracts|partitioner|codegen|compile|execute|plan|select|cost|graph|lower|schedule|ir|targets)$/.test(part)) return "#8fb8de";
  let hash = 0;
  for (const letter of item.name) hash = (31 * hash + letter.charCodeAt(0)) % 9973;
  return shades[hash % shades.length];
}

function drawTimes() {
  drawFlame("by-module", tree(view.place, (node) => [...(node[2] ? node[2].split(".") : ["(no module)"]), shortOp(node[1])]), byBackend, false);
  drawFlame("by-backend", tree(view.place, (node, region) => [region.backend, region.id, shortOp(node[1])]), byBackend, (one, other) => other.value - one.value);
}

function drawCompiling() {
  if (page.compiling) drawFlame("compiling", page.compiling, byName, (one, other) => other.value - one.value);
  else document.getElementById("compiling").replaceChildren(element("p", { class: "dim" }, "Stacks were not sampled: `mixbackend explain MODEL --html FILE` does it while it compiles."));
}
