// The script of the report page: zooms timelines (by buttons, Ctrl + wheel, or the keys + - 0),
// shows the text of the span under the pointer, and opens folded parts when the page is printed.
"use strict";
const NEAREST = 128, NEAR = 8, CLOSE = 32;  // largest zoom; zooms at which smaller labels appear

function makeZoom(timeline) {
  const view = timeline.querySelector(".view"), svg = view.querySelector("svg");
  let zoom = 1;
  // Zooms by a factor; the point of the timeline at x px of the view does not move.
  const by = (factor, x = view.clientWidth / 2) => {
    const next = Math.min(NEAREST, Math.max(1, zoom * factor));
    const place = (view.scrollLeft + x) * next / zoom - x;
    zoom = next;
    svg.style.width = 100 * zoom + "%";
    svg.classList.toggle("near", zoom >= NEAR);
    svg.classList.toggle("close", zoom >= CLOSE);
    view.scrollLeft = place;
  };
  const steps = { "+": 2, "=": 2, "-": 0.5, "0": 1 / NEAREST };
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    by(Math.exp(-event.deltaY / 200), event.clientX - view.getBoundingClientRect().left);
  }, { passive: false });
  view.addEventListener("keydown", (event) => {
    if (steps[event.key] && !event.ctrlKey && !event.metaKey) by(steps[event.key]);
  });
  const tools = document.createElement("span");
  tools.className = "tools";
  for (const [key, text] of [["+", "zoom in"], ["-", "zoom out"], ["0", "whole step"]]) {
    const button = document.createElement("button");
    button.textContent = text;
    button.onclick = () => by(steps[key]);
    tools.append(button);
  }
  timeline.querySelector("figcaption").append(tools);
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
for (const timeline of document.querySelectorAll(".timeline")) {
  makeZoom(timeline);
  const output = timeline.querySelector("output");
  timeline.addEventListener("mouseover", (event) => {
    const title = event.target.querySelector(":scope > title");
    if (title) output.textContent = title.textContent;
  });
}
