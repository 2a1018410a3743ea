// The neighbourhood: hops as rings, the heaviest walks as coloured paths.

import cytoscape from "./cytoscape/cytoscape.esm.min.mjs";
import { $, classColour, count, el, resolved, verdict, walkColour } from "./dom.js";
import { arrange, CROWD, nameSides, ringNames } from "./layout.js";
import { on, open, state } from "./state.js";

export const NARROW = 480;
const SIZES = { right: 15, wrong: 19, unlabelled: 13, centre: 34, visited: 4 };
let graph = null;
let drawn = null;
let cursor = null;
let shape = [0, 0];

export function startDrawing() {
  on("theme", () => graph?.style(style()));
  $("drawing-in").addEventListener("click", () => zoom(1.4));
  $("drawing-out").addEventListener("click", () => zoom(1 / 1.4));
  $("drawing-whole").addEventListener("click", fit);
  $("drawing").addEventListener("keydown", key);
  new ResizeObserver(() => {
    const { clientWidth, clientHeight } = $("drawing");
    if (drawn !== null && clientWidth && (shape[0] !== clientWidth || shape[1] !== clientHeight)) showDrawing(drawn);
  }).observe($("drawing"));
}

export function waitForDrawing() {
  $("drawing-wait").hidden = false;
  $("drawing-wait").textContent = drawn === null ? "Drawing …" : "";
}

// ---------------------------------------------------------------- elements

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const hopsText = (distance) => (distance === 1 ? "1 hop" : `${distance} hops`);

function elements(found) {
  const { nodes, edges, walks } = found;
  const { clientWidth: width, clientHeight: height } = $("drawing");
  const visited = new Set(walks.flatMap((walk) => walk.path));
  const narrow = width < NARROW;
  const at = arrange(found, visited, width / 2 - (narrow ? 26 : 60), height / 2 - 26);
  const rings = ringNames(at);
  const sizes = nodes.map((node, i) => (i ? SIZES[node.outcome] + (visited.has(i) ? SIZES.visited : 0) : SIZES.centre));
  const names = nodes.map((node, i) => short(node.id, narrow ? 14 : i ? 20 : 28));
  const first = (i) => (i === 0 ? 0 : visited.has(i) ? 1 : 2);
  const crowd = at.rings.map((_, ring) => at.level.filter((each) => each === ring).length);
  const named = (i) => visited.has(i) || crowd[at.level[i]] <= CROWD;
  const wanted = nodes.map((_, i) => i).filter(named).sort((a, b) => first(a) - first(b) || nodes[a].distance - nodes[b].distance);
  const taken = rings.map(({ x, y }) => [x - 20, y - 7, 40, 14]);
  taken.push([width / 2 - 50, -height / 2, 50, 130]); // the buttons
  const sides = nameSides(at.places, sizes, names, wanted, taken, width, height);
  const made = rings.flatMap(({ distance, radius, x, y }) => [
    { data: { id: `ring-${distance}`, size: 2 * radius }, classes: "ring", position: { x: 0, y: 0 } },
    { data: { id: `ring-name-${distance}`, label: hopsText(distance) }, classes: "ring-name", position: { x, y } },
  ]);
  for (const [i, node] of nodes.entries()) {
    made.push({
      data: { id: `n${i}`, place: i, name: names[i], size: sizes[i], number: state.run.classes.indexOf(node.predicted) },
      classes: ["node", node.outcome, sides[i] ? `named ${sides[i]}` : "under", i ? "" : "centre", visited.has(i) ? "visited" : ""].join(" "),
      position: at.places[i],
    });
  }
  const linked = new Set(edges.flatMap(([a, b]) => [`${a} ${b}`, `${b} ${a}`]));
  for (const [a, b] of edges) made.push({ data: { id: `e${a}-${b}`, source: `n${a}`, target: `n${b}` }, classes: "edge", selectable: false });
  const times = new Map(); // how many paths run between two nodes already
  for (const [w, walk] of walks.entries()) {
    for (let i = 1; i < walk.path.length; i++) {
      const [a, b] = [walk.path[i - 1], walk.path[i]];
      if (a === b) continue;
      const pair = [a, b].sort((x, y) => x - y).join(" ");
      const before = times.get(pair) ?? 0;
      times.set(pair, before + 1);
      // Beside each other, first left, then right; the sign of a bend turns with the direction.
      const bend = Math.ceil(before / 2) * 11 * (before % 2 ? 1 : -1) * (a < b ? 1 : -1);
      made.push({
        data: { id: `w${w}-${i}`, source: `n${a}`, target: `n${b}`, walk: w, bend, line: linked.has(`${a} ${b}`) ? "solid" : "dashed" },
        classes: "walk",
        selectable: false,
      });
    }
  }
  return made;
}

function style() {
  const [ink, page, edge, line, muted] = ["ink", "page", "edge", "line", "muted"].map((name) => resolved(`var(--${name})`));
  const label = { "font-size": 12, color: ink, "text-outline-color": resolved("var(--panel)"), "text-outline-width": 2 };
  return [
    { selector: ".ring", style: { width: "data(size)", height: "data(size)", shape: "ellipse", "background-opacity": 0, "border-width": 1, "border-color": line, "border-style": "dashed", events: "no", "z-index": 0, "z-index-compare": "manual" } },
    { selector: ".ring-name", style: { width: 1, height: 1, "background-opacity": 0, events: "no", label: "data(label)", ...label, color: muted, "text-valign": "center", "text-halign": "center", "font-size": 11, "text-outline-width": 3, "z-index": 2, "z-index-compare": "manual" } },
    { selector: ".edge", style: { width: 1.2, "line-color": edge, "curve-style": "straight", events: "no", "z-index": 1, "z-index-compare": "manual" } },
    { selector: ".walk", style: { width: 4, "line-color": (each) => resolved(walkColour(each.data("walk"))), "target-arrow-color": (each) => resolved(walkColour(each.data("walk"))), "target-arrow-shape": "triangle", "arrow-scale": 0.8, opacity: 0.85, "line-style": "data(line)", "curve-style": "unbundled-bezier", "control-point-distances": "data(bend)", "control-point-weights": 0.5, events: "no", "z-index": 2, "z-index-compare": "manual" } },
    { selector: ".node", style: { width: "data(size)", height: "data(size)", "background-color": (each) => resolved(classColour(each.data("number"))), "border-width": 2, "border-color": page, "z-index": 3, "z-index-compare": "manual" } },
    { selector: ".wrong", style: { shape: "diamond" } },
    { selector: ".unlabelled", style: { shape: "rectangle" } },
    { selector: ".visited", style: { "border-color": ink } },
    { selector: ".centre", style: { "border-width": 3, "border-color": ink } },
    { selector: ".named, .cursor", style: { label: "data(name)", ...label } },
    { selector: ".centre", style: { "font-weight": "bold", "font-size": 13 } },
    { selector: ".east", style: { "text-halign": "right", "text-valign": "center", "text-margin-x": 4 } },
    { selector: ".west", style: { "text-halign": "left", "text-valign": "center", "text-margin-x": -4 } },
    { selector: ".over", style: { "text-valign": "top", "text-margin-y": -3 } },
    { selector: ".under", style: { "text-valign": "bottom", "text-margin-y": 3 } },
    { selector: ".cursor", style: { "overlay-color": resolved("var(--blue)"), "overlay-opacity": 0.25, "overlay-padding": 7, "z-index": 9, "font-weight": "bold" } },
    { selector: "core", style: { "active-bg-opacity": 0, "selection-box-opacity": 0 } },
  ];
}

export function showDrawing(found) {
  drawn = found;
  cursor = null;
  shape = [$("drawing").clientWidth, $("drawing").clientHeight];
  graph?.destroy();
  graph = cytoscape({
    container: $("drawing"),
    elements: elements(found),
    style: style(),
    layout: { name: "preset", fit: false },
    userZoomingEnabled: false, // the wheel belongs to the page
    userPanningEnabled: false,
    boxSelectionEnabled: false,
    autoungrabify: true,
    autounselectify: true,
    minZoom: 0.1,
    maxZoom: 4,
  });
  graph.on("tap", ".node", (event) => go(event.target.data("place")));
  graph.on("mouseover", ".node", (event) => point(event.target.data("place")));
  graph.on("mouseout", ".node", () => point(null));
  fit();
  $("drawing-wait").hidden = true;
  legend(found);
  say();
}

function fit() {
  if (!graph) return;
  graph.viewport({ zoom: 1, pan: { x: graph.width() / 2, y: graph.height() / 2 } });
  graph.userPanningEnabled(false);
}

function zoom(factor) {
  if (!graph) return;
  const middle = { x: graph.width() / 2, y: graph.height() / 2 };
  graph.zoom({ level: graph.zoom() * factor, renderedPosition: middle });
  graph.userPanningEnabled(true);
}

function legend(found) {
  const present = [...new Set(found.nodes.map((node) => node.predicted))].sort((a, b) => state.run.classes.indexOf(a) - state.run.classes.indexOf(b));
  const outcomes = [...new Set(found.nodes.map((node) => node.outcome))];
  const entry = (className, colour, text) => el("li", {}, el("span", { class: className, "--c": colour }), text);
  const walks = found.walks.map((walk, i) => entry("stroke", walkColour(i), `${i + 1}`));
  const jumps = graph.$(".walk[line = 'dashed']").length ? [entry("stroke jump", "var(--muted)", "jump past an edge")] : [];
  $("drawing-legend").replaceChildren(
    ...present.map((name) => entry("dot", classColour(state.run.classes.indexOf(name)), name)),
    ...outcomes.filter((name) => name !== "right").map((name) => entry(`dot ${name}`, "var(--muted)", name)),
    ...(walks.length ? [el("li", { class: "muted" }, "heaviest walks"), ...walks, ...jumps] : []),
  );
}

// ---------------------------------------------------------------- walking on

function say() {
  if (cursor !== null) {
    const node = drawn.nodes[cursor];
    $("drawing-here").textContent = `${node.id}: ${verdict(node)}`;
    return;
  }
  const some = drawn.rings.filter((ring) => ring.total !== null && ring.shown < ring.total);
  const parts = some.map((ring) => `${count(ring.shown)} of ${count(ring.total)} at ${hopsText(ring.distance)}`);
  $("drawing-here").textContent = parts.length ? `Shown: ${parts.join(", ")}.` : "Everything within these hops is shown.";
}

function point(place) {
  graph.$(".cursor").removeClass("cursor");
  cursor = place;
  if (place !== null) graph.$id(`n${place}`).addClass("cursor");
  say();
}

function go(place) {
  if (place) open(drawn.nodes[place].id);
}

function key(event) {
  if (!graph || event.ctrlKey || event.metaKey || event.altKey) return;
  const here = cursor ?? 0;
  const ring = (distance) => drawn.nodes.map((node, i) => i).filter((i) => drawn.nodes[i].distance === distance);
  const angle = (i) => Math.atan2(...["y", "x"].map((axis) => graph.$id(`n${i}`).position(axis)));
  if (event.key === "Enter") go(here);
  else if (event.key === "+" || event.key === "=") zoom(1.4);
  else if (event.key === "-") zoom(1 / 1.4);
  else if (event.key === "0") fit();
  else if (event.key === "Escape") point(null);
  else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const around = ring(drawn.nodes[here].distance).sort((a, b) => angle(a) - angle(b));
    const by = event.key === "ArrowRight" ? 1 : -1;
    point(around[(around.indexOf(here) + by + around.length) % around.length]);
  } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const rings = [...new Set(drawn.nodes.map((node) => node.distance))].sort((a, b) => a - b);
    const next = rings[rings.indexOf(drawn.nodes[here].distance) + (event.key === "ArrowUp" ? 1 : -1)];
    if (next === undefined) return;
    const turn = (i) => Math.abs(Math.atan2(Math.sin(angle(i) - angle(here)), Math.cos(angle(i) - angle(here))));
    point(ring(next).sort((a, b) => turn(a) - turn(b))[0]);
  } else return;
  event.preventDefault();
}
