// The map: all nodes on a canvas, to pick from by mouse, finger or keyboard.

import { askUntilReady } from "./api.js";
import { $, classColour, count, el, percent, resolved } from "./dom.js";
import { on, open, state, wantedClasses } from "./state.js";

const PARTS = ["train", "val", "test", ""];
const canvas = $("map-canvas");
let columns = null;
let places = new Map();
let shown = []; // whether each node passes the filter
let only = null; // the entry of the legend that is held fast
let cursor = -1; // the node under the keyboard or the mouse
const view = { scale: 1, x: 0.5, y: 0.5 };

export async function startMap() {
  on("filter", refilter);
  on("node", () => {
    cursor = places.get(state.node) ?? -1;
    bringIntoView(cursor);
    draw();
  });
  on("theme", draw);
  new ResizeObserver(draw).observe(canvas);
  $("map-colours").addEventListener("change", () => {
    only = null;
    refilter();
  });
  $("map-in").addEventListener("click", () => zoom(1.6));
  $("map-out").addEventListener("click", () => zoom(1 / 1.6));
  $("map-whole").addEventListener("click", whole);
  canvas.addEventListener("pointerdown", press);
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", () => point(places.get(state.node) ?? -1));
  canvas.addEventListener("keydown", key);
  const wait = $("map-wait");
  wait.hidden = false;
  wait.textContent = "Loading the map …";
  try {
    columns = await askUntilReady("/api/map", {}, () => {
      wait.textContent = "The map is being made: t-SNE takes a while the first time, and is kept then.";
    });
  } catch (error) {
    wait.textContent = error.message;
    return;
  }
  wait.hidden = true;
  places = new Map(columns.id.map((id, i) => [id, i]));
  cursor = places.get(state.node) ?? -1;
  refilter();
}

// ---------------------------------------------------------------- what is shown

const OUTCOMES = ["right", "wrong", "unlabelled"];
const outcome = (i) => (columns.label[i] < 0 ? 2 : columns.label[i] === columns.predicted[i] ? 0 : 1);

function passes(i, classes) {
  const { status, part } = state.filter;
  if (status === "uncertain" ? columns.margin[i] >= state.run.uncertain_margin : status !== "all" && OUTCOMES[outcome(i)] !== status) return false;
  if (part && PARTS[columns.part[i]] !== part) return false;
  return (classes.truth < 0 || columns.label[i] === classes.truth) && (classes.predicted < 0 || columns.predicted[i] === classes.predicted);
}

/** The entry of the legend that a node belongs to. */
function group(i) {
  const by = $("map-colours").value;
  return by === "outcome" ? outcome(i) : columns[by][i];
}

function entries() {
  if ($("map-colours").value === "outcome") {
    const colours = ["var(--green)", "var(--orange)", "var(--class-other)"];
    return OUTCOMES.map((name, i) => ({ number: i, name, colour: colours[i] }));
  }
  const named = state.run.classes.map((name, i) => ({ number: i, name, colour: classColour(i) }));
  return $("map-colours").value === "label" ? [...named, { number: -1, name: "unlabelled", colour: "var(--class-other)" }] : named;
}

function refilter() {
  if (!columns) return;
  const classes = wantedClasses();
  shown = columns.id.map((_, i) => passes(i, classes) && (only === null || group(i) === only));
  const present = new Set(columns.id.map((_, i) => group(i)));
  $("map-legend").replaceChildren(
    ...entries()
      .filter((entry) => present.has(entry.number))
      .map((entry) => {
        const press = () => {
          only = only === entry.number ? null : entry.number;
          refilter();
        };
        const button = el("button", { type: "button", "aria-pressed": String(only === entry.number), onclick: press },
          el("span", { class: "dot", "--c": entry.colour }), entry.name);
        return el("li", {}, button);
      }),
  );
  say();
  draw();
}

function say() {
  if (cursor >= 0) {
    const truth = columns.label[cursor];
    const name = state.run.classes[columns.predicted[cursor]];
    const rest = truth < 0 ? "unlabelled" : outcome(cursor) === 0 ? "right" : `but is ${state.run.classes[truth]}`;
    $("map-here").textContent = `${columns.id[cursor]}: ${name}, ${rest}, margin ${percent(columns.margin[cursor])}`;
    return;
  }
  const number = shown.filter(Boolean).length;
  const sample = columns.id.length < columns.total ? ` (a sample of ${count(columns.id.length)})` : "";
  $("map-here").textContent = `${count(number)} of ${count(columns.total)} nodes${sample}`;
}

// ---------------------------------------------------------------- drawing

const PADDING = 14;
const side = () => Math.min(canvas.clientWidth, canvas.clientHeight) - 2 * PADDING;
const toX = (i) => canvas.clientWidth / 2 + (columns.x[i] / columns.side - view.x) * side() * view.scale;
const toY = (i) => canvas.clientHeight / 2 + (columns.y[i] / columns.side - view.y) * side() * view.scale;

function draw() {
  if (!columns || !canvas.clientWidth) return;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  const colours = new Map(entries().map((entry) => [entry.number, resolved(entry.colour)]));
  const size = Math.max(1.4, Math.min(4, 90 / Math.sqrt(columns.id.length))) * Math.min(2, Math.sqrt(view.scale));
  const faint = resolved("var(--edge)");
  for (const bright of [false, true]) {
    pen.globalAlpha = bright ? 0.85 : 0.22;
    for (let i = 0; i < columns.id.length; i++) {
      if (shown[i] !== bright) continue;
      pen.fillStyle = bright ? colours.get(group(i)) : faint;
      pen.beginPath();
      pen.arc(toX(i), toY(i), bright ? size : size * 0.8, 0, 2 * Math.PI);
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
  const selected = places.get(state.node) ?? -1;
  if (selected >= 0) ring(pen, selected, 7, 3);
  if (cursor >= 0 && cursor !== selected) ring(pen, cursor, 6, 1.5);
}

function ring(pen, i, radius, width) {
  for (const [colour, extra] of [["var(--page)", 2.5], ["var(--ink)", 0]]) {
    pen.strokeStyle = resolved(colour);
    pen.lineWidth = width + extra;
    pen.beginPath();
    pen.arc(toX(i), toY(i), radius, 0, 2 * Math.PI);
    pen.stroke();
  }
}

function zoom(factor) {
  view.scale = Math.min(40, Math.max(1, view.scale * factor));
  const centre = cursor >= 0 ? { x: columns.x[cursor] / columns.side, y: columns.y[cursor] / columns.side } : view;
  if (view.scale === 1) whole();
  else Object.assign(view, { x: centre.x, y: centre.y });
  draw();
}

function whole() {
  Object.assign(view, { scale: 1, x: 0.5, y: 0.5 });
  draw();
}

function bringIntoView(i) {
  if (i < 0 || view.scale === 1) return;
  const inside = toX(i) > 0 && toX(i) < canvas.clientWidth && toY(i) > 0 && toY(i) < canvas.clientHeight;
  if (!inside) Object.assign(view, { x: columns.x[i] / columns.side, y: columns.y[i] / columns.side });
}

// ---------------------------------------------------------------- picking

function nearest(x, y, within) {
  let best = -1;
  let least = within * within;
  for (let i = 0; i < columns.id.length; i++) {
    if (!shown[i]) continue;
    const distance = (toX(i) - x) ** 2 + (toY(i) - y) ** 2;
    if (distance < least) [best, least] = [i, distance];
  }
  return best;
}

function point(i) {
  if (!columns || i === cursor) return;
  cursor = i;
  say();
  draw();
}

function hover(event) {
  if (columns && event.pointerType === "mouse" && !event.buttons) point(nearest(event.offsetX, event.offsetY, 14));
}

function press(event) {
  if (!columns) return;
  const start = { x: event.offsetX, y: event.offsetY, viewX: view.x, viewY: view.y };
  let moved = false;
  const move = (now) => {
    const [dx, dy] = [now.offsetX - start.x, now.offsetY - start.y];
    moved ||= Math.hypot(dx, dy) > 5;
    if (!moved || view.scale === 1) return;
    Object.assign(view, { x: start.viewX - dx / side() / view.scale, y: start.viewY - dy / side() / view.scale });
    draw();
  };
  const lift = () => {
    canvas.removeEventListener("pointermove", move);
    if (moved) return;
    const found = nearest(start.x, start.y, event.pointerType === "mouse" ? 14 : 26);
    if (found >= 0) open(columns.id[found]);
  };
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", lift, { once: true });
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function key(event) {
  if (!columns || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" && cursor >= 0) open(columns.id[cursor]);
  else if (event.key === "+" || event.key === "=") zoom(1.6);
  else if (event.key === "-") zoom(1 / 1.6);
  else if (event.key === "0") whole();
  else if (DIRECTIONS[event.key]) step(...DIRECTIONS[event.key]);
  else return;
  event.preventDefault();
}

/** The nearest node in a direction; what lies aside counts twice. */
function step(dx, dy) {
  if (cursor < 0) return point(nearest(canvas.clientWidth / 2, canvas.clientHeight / 2, 1e6));
  const [x, y] = [toX(cursor), toY(cursor)];
  let best = -1;
  let least = Infinity;
  for (let i = 0; i < columns.id.length; i++) {
    if (!shown[i] || i === cursor) continue;
    const along = (toX(i) - x) * dx + (toY(i) - y) * dy;
    const aside = Math.abs((toX(i) - x) * dy) + Math.abs((toY(i) - y) * dx);
    if (along > aside / 2 && along + 2 * aside < least && along > 0.5) [best, least] = [i, along + 2 * aside];
  }
  if (best >= 0) {
    bringIntoView(best);
    point(best);
  }
}
