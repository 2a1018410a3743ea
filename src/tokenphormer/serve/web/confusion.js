// The confusion matrix: a cell opens its nodes.

import { ask } from "./api.js";
import { $, count, el, percent } from "./dom.js";
import { complain, on, setFilter, state } from "./state.js";

let part = null;

export function startConfusion(showList) {
  const update = () => {
    const wanted = state.filter.part || "all";
    if (wanted === part || $("panel-confusion").hidden) return;
    part = wanted;
    const failed = (error) => {
      part = null; // the next time it is asked for again
      complain(error);
    };
    ask("/api/confusion", { part }).then((found) => part === wanted && show(found, showList), failed);
  };
  on("filter", update);
  on("tab", update);
}

function show(found, showList) {
  const { classes, confusion } = found;
  const most = Math.max(1, ...confusion.flat());
  const numbered = classes.length > 4; // names of columns would not fit
  const head = el("tr", {}, el("th", { scope: "col" }, "true\u00a0↓ predicted\u00a0→"),
    ...classes.map((name, i) => el("th", { scope: "col", title: name }, numbered ? String(i + 1) : name)));
  const rows = confusion.map((row, truth) => {
    const total = row.reduce((a, b) => a + b, 0);
    const name = numbered ? `${truth + 1} ${classes[truth]}` : classes[truth];
    const cells = row.map((number, predicted) => cell(number, total, most, classes, truth, predicted, showList));
    return el("tr", {}, el("th", { scope: "row", title: classes[truth] }, name), ...cells);
  });
  const labelled = confusion.flat().reduce((a, b) => a + b, 0);
  const which = part === "all" ? "all labelled nodes" : `the labelled nodes of ${part}`;
  const accuracy = found.accuracy === null ? "" : `, accuracy ${(100 * found.accuracy).toFixed(1)} %`;
  const columns = [el("col", { class: "names" }), ...classes.map(() => el("col"))];
  const table = el("table", { class: classes.length > 8 ? "confusion many" : "confusion" }, el("caption", {}, `${count(labelled)}: ${which}${accuracy}. A cell opens its nodes.`),
    el("colgroup", {}, ...columns), el("thead", {}, head), el("tbody", {}, ...rows));
  if (classes.length > 14) table.style.width = `${8 + 2.4 * classes.length}rem`;
  $("confusion").replaceChildren(el("div", { class: "scroll" }, table));
}

/** What fits into a cell; the whole number is in its title. */
const fitting = (number, classes) => (number > 999 && classes.length > 6 ? `${Math.round(number / 1000)}k` : number ? count(number) : "·");

function cell(number, total, most, classes, truth, predicted, showList) {
  const share = number ? 12 + 76 * Math.sqrt(number / most) : 0;
  const right = truth === predicted;
  const label = `${count(number)} nodes of ${classes[truth]} predicted as ${classes[predicted]}`;
  const open = () => {
    setFilter({ status: "all", truth: classes[truth], predicted: classes[predicted] });
    showList();
  };
  const button = el("button", {
    type: "button",
    disabled: !number,
    title: number ? `${label} (${percent(number / total)})` : label,
    "aria-label": label,
    class: share > 60 ? "full" : null,
    "--share": `${share}%`,
    "--c": right ? "var(--blue)" : "var(--orange)",
    onclick: open,
  }, fitting(number, classes));
  return el("td", {}, button);
}
