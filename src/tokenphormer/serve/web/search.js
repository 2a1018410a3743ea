// Find a node by its id: a combobox.

import { ask } from "./api.js";
import { $, el, mark } from "./dom.js";
import { complain, open, state } from "./state.js";

const input = $("search");
const hits = $("hits");
let found = [];
let chosen = -1;
let asked = 0;
let timer = 0;

export function startSearch() {
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 120);
  });
  input.addEventListener("keydown", key);
  input.addEventListener("blur", () => setTimeout(close, 150));
  $("search-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    if (chosen < 0) await look();
    pick(Math.max(0, chosen));
  });
}

async function look() {
  const mine = ++asked;
  const query = input.value.trim();
  if (!query) {
    found = []; // of an earlier question
    return close();
  }
  try {
    const answer = await ask("/api/nodes", { query, limit: 12 });
    if (mine !== asked) return;
    found = answer.nodes;
    show(answer.total);
  } catch (error) {
    found = [];
    complain(error);
  }
}

function show(total) {
  chosen = -1;
  const entries = found.map((node, i) =>
    el("li", { id: `hit-${i}`, role: "option", "aria-selected": "false", onpointerdown: (event) => {
      event.preventDefault();
      pick(i);
    } }, mark(node, state.run.classes), el("span", { class: "id" }, node.id), el("span", { class: "number" }, node.predicted)));
  if (!found.length) entries.push(el("li", { class: "none" }, "No node has this in its id."));
  if (total > found.length) entries.push(el("li", { class: "none" }, `and ${total - found.length} more`));
  hits.replaceChildren(...entries);
  hits.hidden = false;
  input.setAttribute("aria-expanded", "true");
}

function close() {
  hits.hidden = true;
  chosen = -1;
  input.setAttribute("aria-expanded", "false");
  input.removeAttribute("aria-activedescendant");
}

function pick(i) {
  if (!found[i]) return;
  open(found[i].id);
  input.value = "";
  close();
  input.blur();
}

function key(event) {
  if (event.key === "Escape") {
    close();
    input.blur();
  }
  if (hits.hidden || !found.length || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
  event.preventDefault();
  chosen = (chosen + (event.key === "ArrowDown" ? 1 : -1) + found.length) % found.length;
  for (const [i, each] of [...hits.children].entries()) each.setAttribute("aria-selected", String(i === chosen));
  input.setAttribute("aria-activedescendant", `hit-${chosen}`);
  hits.children[chosen].scrollIntoView({ block: "nearest" });
}
