"use strict";
// Tabs and choices; `#show=time,1` is a link to the times of the second graph, `#show=graph,0,r2` to a region of the first.
// A view is drawn whenever it is shown: flame graphs need the width that they get.
const tabs = { graph: ["Graph", drawGraph], time: ["Time", drawTimes], regions: ["Regions", drawRegions], compiling: ["Compiling", drawCompiling],
  compare: ["Compared", drawCompare], events: ["Events", drawEvents], text: ["As text", drawEvents] };
let shown = "graph";

function show(name) {
  shown = name;
  for (const other of Object.keys(tabs)) {
    document.getElementById(`tab-${other}`).classList.toggle("on", other === name);
    document.getElementById(`to-${other}`).classList.toggle("on", other === name);
  }
  if (told.length || ["compiling", "events", "text"].includes(name)) tabs[name][1]();
  document.body.dataset.shown = name;
}

function showRegion(id) {
  view.by = "region";
  document.getElementById("by").value = "region";
  show("graph");
  const node = view.drawing.getElementById(id);
  node.select();
  view.drawing.animate({ center: { eles: node }, zoom: 1 }, { duration: 0 });
  tell(node.data("group"));
}

function choose(place) {
  view.place = place;
  document.getElementById("graphs").value = String(place);
  const by = document.getElementById("by"), deepest = Math.min(8, depthOf(place));
  const ways = ["region", ...d3.range(1, deepest + 1).map((depth) => `modules, depth ${depth}`)];
  by.replaceChildren(...ways.map((way) => element("option", { value: way }, way === "region" ? "regions" : way)));
  // A region or two say less than the modules in them.
  if (!ways.includes(view.by)) view.by = told[place].regions.length > 2 ? "region" : ways[Math.min(2, deepest)];
  by.value = view.by;
  drawSummary();
  show(shown);
}

cytoscape.use(cytoscapeDagre);
for (const [name, [label]] of Object.entries(tabs)) document.getElementById("tabs").append(element("button", { id: `to-${name}`, onclick: () => show(name) }, label));
document.getElementById("graphs").append(...told.map((graph, place) => element("option", { value: String(place) }, graph.id)));
document.getElementById("graphs").addEventListener("change", (event) => choose(Number(event.target.value)));
document.getElementById("overlay").append(...Object.keys(overlays).map((name) => element("option", { value: name }, name)));
document.getElementById("overlay").addEventListener("change", (event) => { view.overlay = event.target.value; drawGraph(); });
document.getElementById("by").addEventListener("change", (event) => { view.by = event.target.value; drawGraph(); });
const [wanted, place, region] = location.hash.replace("#show=", "").split(",");
if (told.length) { shown = wanted in tabs ? wanted : "graph"; choose(Math.min(Number(place) || 0, told.length - 1)); if (told[view.place].regions.some((item) => item.id === region)) showRegion(region); }
else { document.getElementById("summary").append("Nothing was compiled yet."); show("text"); }
document.body.dataset.ready = "yes";
