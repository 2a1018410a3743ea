// Which nodes are looked at, and the list of them.

import { ask } from "./api.js";
import { $, count, el, mark, nodeHref, percent, verdict } from "./dom.js";
import { complain, on, open, setFilter, state } from "./state.js";

const PAGE = 50;
let rows = [];
let total = 0;
let asked = 0; // which question is the newest

export function startList() {
  on("filter", () => load(true));
  on("node", markCurrent);
  $("list-order").addEventListener("change", () => load(true));
  $("list-more").addEventListener("click", () => load(false));
  on("filter", showFilters);
  showFilters();
  return load(true);
}

// ---------------------------------------------------------------- filters

function showFilters() {
  const { counts, nodes } = state.run;
  const { status, part, truth, predicted } = state.filter;
  const names = [["all", "All", nodes], ["wrong", "Wrong", counts.wrong], ["uncertain", "Uncertain", counts.uncertain],
    ["right", "Right", counts.right], ["unlabelled", "Unlabelled", counts.unlabelled]];
  const near = `the two most probable classes are less than ${percent(state.run.uncertain_margin)} apart`;
  $("statuses").replaceChildren(
    ...names.filter(([value, , number]) => number || value === "all").map(([value, name, number]) =>
      el("button", { type: "button", "aria-pressed": String(status === value), title: value === "uncertain" ? near : null, onclick: () => setFilter({ status: value }) },
        name, " ", el("small", {}, count(number)))),
  );
  const parts = [["", "all parts"], ["train", "training nodes"], ["val", "validation nodes"], ["test", "test nodes"]];
  const select = el("select", { "aria-label": "Part of the split", onchange: (event) => setFilter({ part: event.target.value }) },
    ...parts.map(([value, name]) => el("option", { value, selected: value === part }, name)));
  const off = (name, text) =>
    state.filter[name] && el("button", { type: "button", class: "on", "aria-label": `Remove: ${text}`, onclick: () => setFilter({ [name]: "" }) }, `${text} ✕`);
  const chips = [off("truth", `is ${truth}`), off("predicted", `predicted ${predicted}`)].filter(Boolean);
  const had = document.activeElement?.parentElement?.id === "filters" && document.activeElement.tagName === "SELECT";
  $("filters").replaceChildren(select, ...chips);
  if (had) select.focus();
}

// ---------------------------------------------------------------- the list

async function load(anew) {
  const mine = ++asked;
  try {
    const found = await ask("/api/nodes", { ...state.filter, order: $("list-order").value, offset: anew ? 0 : rows.length, limit: PAGE });
    if (mine !== asked) return;
    rows = anew ? found.nodes : [...rows, ...found.nodes];
    total = found.total;
  } catch (error) {
    complain(error);
    return;
  }
  const list = $("list");
  if (anew) list.replaceChildren();
  list.append(...rows.slice(list.children.length).map(entry));
  $("list-count").textContent = `${count(total)} ${total === 1 ? "node" : "nodes"}`;
  $("list-more").hidden = rows.length >= total;
  markCurrent();
}

const entry = (node) =>
  el("li", {}, el("a", { href: nodeHref(node.id), "data-id": node.id },
    mark(node, state.run.classes), el("span", { class: "id", title: node.id }, node.id),
    el("span", { class: "number" }, percent(node.probability)),
    el("span", { class: "what" }, node.outcome === "wrong" ? `${node.predicted}, but is ${node.label}` : verdict(node))));

function markCurrent() {
  for (const link of $("list").querySelectorAll("a")) {
    if (link.dataset.id === state.node) {
      link.setAttribute("aria-current", "true");
      if (!$("panel-list").hidden) link.scrollIntoView({ block: "nearest" });
    } else link.removeAttribute("aria-current");
  }
}

/** The next node of the list, or the one before. */
export async function stepInList(by) {
  const here = rows.findIndex((node) => node.id === state.node);
  const next = here < 0 ? 0 : here + by;
  if (next >= rows.length && rows.length < total) await load(false);
  if (rows[next]) open(rows[next].id);
}
