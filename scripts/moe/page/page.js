// The script of the report page: zooms timelines (by buttons, Ctrl + wheel, or the keys + - 0),
// those of a point together; shows the text of the span under the pointer; chooses which timelines
// are shown and whether side by side; saves charts as SVG, and tables as CSV and LaTeX; and opens
// folded parts when the page is printed.
"use strict";
const NEAREST = 128, NEAR = 8, CLOSE = 32;  // largest zoom; zooms at which smaller labels appear
const SVG = "http://www.w3.org/2000/svg", POINT = 0.6;  // pt of a file per px (charts/svg.lua)

function makeButtons(list) {
  const tools = document.createElement("span");
  tools.className = "tools";
  for (const [text, action] of list) {
    const button = document.createElement("button");
    button.textContent = text;
    button.onclick = action;
    tools.append(button);
  }
  return tools;
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function svgElement(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Saves a picture of this size, with the rules and the pattern of its classes.
function saveSvg(name, title, width, height, children) {
  const rules = document.getElementById("chart-rules").content.textContent;
  const picture = svgElement("svg", { viewBox: `0 0 ${width} ${height}`,
    width: POINT * width + "pt", height: POINT * height + "pt", role: "img", "aria-label": title },
  svgElement("title", {}, title), svgElement("style", {}, rules),
  svgElement("defs", {}, document.getElementById("hatch").cloneNode(true)),
  svgElement("rect", { width: "100%", height: "100%", class: "ground" }), ...children);
  save(name + ".svg", "image/svg+xml", '<?xml version="1.0" encoding="UTF-8"?>\n' +
    new XMLSerializer().serializeToString(picture) + "\n");
}

function saveChart(figure) {
  const chart = figure.querySelector("svg"), box = chart.viewBox.baseVal;
  saveSvg(figure.dataset.name, chart.getAttribute("aria-label"), box.width, box.height,
    [...chart.cloneNode(true).childNodes]);
}

// Saves a timeline as it is seen: with its zoom, at its place.
function saveTimeline(name, figure) {
  const view = figure.querySelector(".view"), lanes = view.querySelector("svg"), left = 150;
  const width = view.clientWidth, height = +lanes.getAttribute("height");
  const title = view.getAttribute("aria-label");
  const texts = [...figure.querySelectorAll(".labels div")].map((label, i) =>
    svgElement("text", { x: 4, y: 40 + 24 * i, class: "tick" }, label.textContent.slice(0, 24)));
  const copy = lanes.cloneNode(true);
  copy.removeAttribute("style");
  for (const [key, value] of Object.entries({ x: -view.scrollLeft, width: view.scrollWidth,
    class: "lanes" })) copy.setAttribute(key, value);
  if (lanes.classList.contains("near")) {
    for (const label of copy.querySelectorAll(".small")) label.classList.remove("small");
  }
  saveSvg(name, title, left + width, height + 30, [
    svgElement("text", { x: 4, y: 16, class: "title" }, title), ...texts,
    svgElement("svg", { x: left, y: 24, width, height }, copy)]);
}

// Returns the function by(factor, x), which zooms the timeline; its point at x px of the view does
// not move.
function makeZoom(timeline) {
  const view = timeline.querySelector(".view"), svg = view.querySelector("svg");
  let zoom = 1;
  return (factor, x = view.clientWidth / 2) => {
    const next = Math.min(NEAREST, Math.max(1, zoom * factor));
    const place = (view.scrollLeft + x) * next / zoom - x;
    zoom = next;
    svg.style.width = 100 * zoom + "%";
    svg.classList.toggle("near", zoom >= NEAR);
    svg.classList.toggle("close", zoom >= CLOSE);
    view.scrollLeft = place;
  };
}

// Lets the timelines of a point be zoomed and moved together.
function makeTimelines(group) {
  const timelines = [...group.querySelectorAll(".timeline")], zooms = timelines.map(makeZoom);
  const views = timelines.map((timeline) => timeline.querySelector(".view"));
  const by = (factor, x) => { for (const zoom of zooms) zoom(factor, x); };
  const steps = { "+": 2, "=": 2, "-": 0.5, "0": 1 / NEAREST };
  timelines.forEach((timeline, i) => {
    const view = views[i], output = timeline.querySelector("output");
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      by(Math.exp(-event.deltaY / 200), event.clientX - view.getBoundingClientRect().left);
    }, { passive: false });
    view.addEventListener("keydown", (event) => {
      if (steps[event.key] && !event.ctrlKey && !event.metaKey) by(steps[event.key]);
    });
    view.addEventListener("scroll", () => {
      for (const other of views) {
        if (other.scrollLeft !== view.scrollLeft) other.scrollLeft = view.scrollLeft;
      }
    });
    timeline.addEventListener("mouseover", (event) => {
      const title = event.target.querySelector(":scope > title");
      if (title) output.textContent = title.textContent;
    });
    timeline.querySelector("figcaption").append(makeButtons([["zoom in", () => by(2)],
      ["zoom out", () => by(0.5)], ["whole step", () => by(1 / NEAREST)],
      ["SVG", () => saveTimeline(`${group.dataset.name}-${i + 1}`, timeline)]]));
  });
  if (timelines.length > 1) group.prepend(makeChoice(group, timelines));
}

// Returns a box for each timeline, which shows it, and one that puts them side by side.
function makeChoice(group, timelines) {
  const choice = document.createElement("div");
  choice.className = "tools";
  const box = (text, on, action) => {
    const label = document.createElement("label"), input = document.createElement("input");
    input.type = "checkbox";
    input.checked = on;
    input.onchange = () => action(input.checked);
    label.append(input, " " + text);
    choice.append(label);
  };
  box("side by side", false, (on) => group.classList.toggle("beside", on));
  for (const timeline of timelines) {
    box(timeline.querySelector(".view").getAttribute("aria-label").split(";")[0], true,
      (on) => timeline.classList.toggle("off", !on));
  }
  return choice;
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not(.long)")) details.open = true;
});
for (const group of document.querySelectorAll(".timelines")) makeTimelines(group);
for (const figure of document.querySelectorAll(".picture")) {
  figure.append(makeButtons([["SVG", () => saveChart(figure)]]));
}
for (const table of document.querySelectorAll(".table")) {
  const text = (kind) => table.querySelector("template." + kind).content.textContent;
  const name = table.dataset.name;
  table.append(makeButtons([["CSV", () => save(name + ".csv", "text/csv", text("csv"))],
    ["LaTeX", () => save(name + ".tex", "text/x-tex", text("tex"))]]));
}
