"use strict";
// The data, colours, and small pieces of HTML that all views make. Everything is set as text, never as markup.
const page = JSON.parse(document.getElementById("data").textContent);
const told = page.report.graphs;
const backends = [...new Set([...told, ...(page.against ? page.against.graphs : [])].flatMap(
  (graph) => graph.regions.map((region) => region.backend)))].sort();
const palette = ["#4477aa", "#ee8866", "#44aa88", "#aa4499", "#ccaa33", "#66ccee", "#bb5566", "#999933", "#8877cc", "#777777"];
const colourOf = (backend) => backend === "eager" ? "#b5bac2" : palette[backends.filter((name) => name !== "eager").indexOf(backend) % palette.length];
const shortOp = (op) => op.replace(/^aten\./, "").replace(/\.default$/, "");
const secondsOf = (region) => region.measured_s ?? region.estimated_s ?? 0;

function ms(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const value = seconds * 1e3, size = Math.abs(value);
  return value === 0 ? "0" : size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toPrecision(3);
}

function times(error) {
  if (!error) return "-";
  if (error.eager_error === 0) return error.error === 0 ? "exact" : "eager is exact";
  return `${(error.error / error.eager_error).toPrecision(2)} of eager's`;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (key === "style") made.style.cssText = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function table(headings, rows, onclick = null) {
  const numbers = headings.map((heading) => heading.startsWith("#"));
  const cells = (kind, values) => values.map((value, place) => element(kind, numbers[place] ? { class: "number" } : {}, value));
  return element("table", {},
    element("thead", {}, element("tr", {}, ...cells("th", headings.map((heading) => heading.replace(/^#/, ""))))),
    element("tbody", {}, ...rows.map((row, place) => element("tr", onclick ? { class: "link", onclick: () => onclick(place) } : {}, ...cells("td", row)))));
}

const key = (backend, text = backend) => element("span", { class: "key" }, element("i", { style: `background:${colourOf(backend)}` }), text);
