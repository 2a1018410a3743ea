// The open node: its prediction, its tokens by weight, its neighbours.

import { ask } from "./api.js";
import { $, bar, classColour, count, el, mark, nodeHref, percent, signed, verdict, walkColour } from "./dom.js";
import { NARROW, showDrawing, waitForDrawing } from "./drawing.js";
import { calm, complain, on, state, tell } from "./state.js";

const TOP_CLASSES = 7;
const TOP_TOKENS = 12;
const ABOUT = {
  occlusion: "How much of the predicted class's probability is lost when a token is left out; striped: it rises.",
  attention: "The readout's weights. They say where the model looks, not what moves the prediction.",
  rollout: "Attention followed through the layers. It says where the model looks, not what moves the prediction.",
};
let asking = new AbortController();
let neighbours = 0;

export function startNode() {
  for (const id of ["hops", "walks"]) $(id).addEventListener("change", drawAgain);
  $("method").addEventListener("change", explainAgain);
  $("neighbours-more").addEventListener("click", () => moreNeighbours(asking.signal).catch(complain));
  on("drawn", () => {
    for (const each of $("tokens").querySelectorAll("li")) recolour(each);
  });
}

/** Whether there is such a node. */
export async function openNode(id) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  let node = null;
  try {
    node = await ask("/api/predict", { id }, { signal });
    state.node = node.id;
    showHead(node);
    showProbabilities(node);
    tell("node");
    $("neighbours").replaceChildren();
    neighbours = 0;
    await Promise.all([moreNeighbours(signal), explain(signal), draw(signal)]);
  } catch (error) {
    complain(error);
  }
  return node !== null;
}

const explainAgain = () => again((signal) => Promise.all([explain(signal), draw(signal)]));
const drawAgain = () => again(draw);

function again(work) {
  if (state.node === null) return;
  asking.abort();
  asking = new AbortController();
  work(asking.signal).then(calm, complain);
}

// ---------------------------------------------------------------- the prediction

function showHead(node) {
  document.title = `${node.id} · ${state.run.graph}`;
  $("node-title").textContent = node.id;
  const parts = ["Predicted ", el("b", {}, node.predicted), ` with ${percent(node.probability)}`];
  if (node.outcome === "wrong") parts.push(", but is ", el("b", {}, node.label), ".");
  else parts.push(node.outcome === "right" ? ", which is right." : "; its class is not known.");
  $("node-verdict").replaceChildren(...parts);
  const facts = [el("li", { class: node.outcome }, node.outcome)];
  if (node.uncertain) facts.push(el("li", { class: "uncertain" }, "uncertain"));
  const part = { train: "training node", val: "validation node", test: "test node" }[node.part] ?? "in no part of the split";
  facts.push(el("li", {}, part), el("li", {}, `${count(node.degree)} ${node.degree === 1 ? "neighbour" : "neighbours"}`));
  $("node-facts").replaceChildren(...facts);
  $("neighbours-title").textContent = `Neighbours (${count(node.degree)})`;
}

function showProbabilities(node) {
  const ranked = node.probabilities.map((share, i) => ({ share, i })).sort((a, b) => b.share - a.share);
  const rows = ranked.map(({ share, i }, rank) => {
    const name = node.classes[i];
    const tags = name === node.label ? [el("span", { class: "tag" }, "true class")] : [];
    return el("li", { class: rank ? null : "top" }, el("span", { class: "name" }, name, ...tags),
      el("span", { class: "number" }, percent(share)), bar(share, { colour: classColour(i) }));
  });
  fold($("probabilities"), $("probabilities-more"), rows, TOP_CLASSES, "classes");
}

/** Show the first rows, and a button for all. */
function fold(list, button, rows, most, what) {
  list.replaceChildren(...rows.slice(0, most));
  button.hidden = rows.length <= most;
  button.textContent = `Show all ${count(rows.length)} ${what}`;
  button.onclick = () => {
    list.replaceChildren(...rows);
    button.hidden = true;
  };
}

async function moreNeighbours(signal) {
  const found = await ask("/api/nodes", { neighbour_of: state.node, offset: neighbours, limit: 40 }, { signal });
  neighbours += found.nodes.length;
  $("neighbours").append(...found.nodes.map((node) =>
    el("li", {}, el("a", { href: nodeHref(node.id), title: verdict(node) }, mark(node, state.run.classes), node.id))));
  if (!found.total) $("neighbours").append(el("li", { class: "muted" }, "No edge leads on from here."));
  $("neighbours-more").hidden = neighbours >= found.total;
}

// ---------------------------------------------------------------- tokens

const KINDS = {
  uniform: "uniform walk",
  non_backtracking: "non-backtracking walk",
  jump: "jump walk",
  non_backtracking_jump: "non-backtracking jump walk",
  sgpm: "SGPM-token",
};
const kindName = (kind) => KINDS[kind] ?? kind;

async function explain(signal) {
  const method = $("method").value;
  const note = state.run.score_hops ? " Scores that neighbours pass on to the node are held as they are while tokens are removed; they are listed after them." : "";
  $("tokens-about").textContent = ABOUT[method] + note;
  $("tokens").replaceChildren(el("li", { class: "muted" }, "Explaining …"));
  $("parts").replaceChildren();
  $("tokens-more").hidden = true;
  const found = await ask("/api/explain", { id: state.node, method }, { signal });
  const parts = found.parts.filter((part) => part.tokens !== 1); // of one token, the token itself says it all
  const whole = Math.max(1e-12, ...parts.map((part) => Math.abs(part.importance)));
  $("parts").replaceChildren(...parts.map((part) =>
    el("li", {}, el("span", { class: "name" }, kindName(part.name), el("span", { class: "tag" }, `${part.tokens}`)),
      el("span", { class: "number" }, weight(part, method)), weightBar(part, whole))));
  const most = Math.max(1e-12, ...[...found.tokens, ...found.neighbours].map((each) => Math.abs(each.importance)));
  const rows = found.tokens.map((token, i) => tokenRow(token, i, most, method));
  rows.push(...found.neighbours.map((each, i) => neighbourRow(each, rows.length + i, most, method)));
  if (!rows.length) rows.push(el("li", { class: "muted" }, "The model's settings have no walk- and no hop-token: under occlusion, scores that neighbours pass on are listed here, if there are any."));
  fold($("tokens"), $("tokens-more"), rows, TOP_TOKENS, "tokens");
  tell("drawn");
}

const weight = (each, method) => signed(each.importance, method === "occlusion");
const weightBar = (each, most) => bar(Math.abs(each.importance) / most, { against: each.importance < 0 });

function tokenRow(token, i, most, method) {
  const times = token.count > 1 ? ` × ${token.count}` : "";
  const steps = token.path.flatMap((id, at) => [at ? el("i", { "aria-hidden": "true" }, "→") : null, id === state.node ? id : el("a", { href: nodeHref(id) }, id)]);
  const row = el("li", { "data-walk": token.path.length ? walkKey(token.kind, token.path) : null },
    el("span", { class: "rank" }, String(i + 1)), el("span", { class: "kind" }, kindName(token.kind) + times),
    el("span", { class: "weight" }, el("span", { class: "number" }, weight(token, method)), weightBar(token, most)),
    token.path.length ? el("span", { class: "path" }, ...steps) : null);
  recolour(row);
  return row;
}

function neighbourRow(neighbour, i, most, method) {
  return el("li", {},
    el("span", { class: "rank" }, String(i + 1)), el("span", { class: "kind" }, `scores passed on, ${neighbour.says}`),
    el("span", { class: "weight" }, el("span", { class: "number" }, weight(neighbour, method)), weightBar(neighbour, most)),
    el("span", { class: "path" }, el("a", { href: nodeHref(neighbour.id) }, neighbour.id)));
}

// ---------------------------------------------------------------- the drawing

let drawnWalks = new Map();
const walkKey = (kind, path) => JSON.stringify([kind, path]);

async function draw(signal) {
  waitForDrawing();
  const narrow = $("drawing").clientWidth < NARROW;
  const values = { id: state.node, hops: $("hops").value, walks: $("walks").value, method: $("method").value, limit: narrow ? 22 : 44 };
  const found = await ask("/api/neighbourhood", values, { signal });
  const ids = found.nodes.map((node) => node.id);
  drawnWalks = new Map(found.walks.map((walk, i) => [walkKey(walk.kind, walk.path.map((place) => ids[place])), i]));
  showDrawing(found);
  tell("drawn");
}

/** A token that is drawn as a path shows the path's colour. */
function recolour(row) {
  if (row.dataset.walk === undefined) return;
  const number = drawnWalks.get(row.dataset.walk);
  row.querySelector(".stroke")?.remove();
  if (number !== undefined) row.querySelector(".kind").prepend(el("span", { class: "stroke", "--c": walkColour(number), title: "drawn in this colour" }), " ");
}
