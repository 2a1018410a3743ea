// The page comes together here.

import { ask, askUntilReady, takeToken } from "./api.js";
import { startConfusion } from "./confusion.js";
import { $, count, percent } from "./dom.js";
import { startDrawing } from "./drawing.js";
import { startList, stepInList } from "./list.js";
import { startMap } from "./map.js";
import { openNode, startNode } from "./node.js";
import { startSearch } from "./search.js";
import { calm, complain, state, tell } from "./state.js";
import { nextTheme, startTheme } from "./theme.js";

const TABS = ["map", "confusion", "list"];

function showTab(name, focus = false) {
  for (const each of TABS) {
    const tab = $(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    $(`panel-${each}`).hidden = each !== name;
  }
  if (focus) $(`tab-${name}`).focus();
  tell("tab");
}

function startTabs() {
  for (const [i, name] of TABS.entries()) {
    $(`tab-${name}`).addEventListener("click", () => showTab(name));
    $(`tab-${name}`).addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) showTab(TABS[(i + by + TABS.length) % TABS.length], true);
    });
  }
}

function startKeys() {
  const dialog = $("help-dialog");
  $("help").addEventListener("click", () => dialog.showModal());
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address stays the node's
    $("node-title").focus();
  });
  const keys = {
    "/": () => $("search").focus(),
    "?": () => dialog.showModal(),
    m: () => showTab("map", true),
    c: () => showTab("confusion", true),
    l: () => showTab("list", true),
    n: () => stepInList(1),
    p: () => stepInList(-1),
    b: () => history.back(),
    g: () => $("drawing").focus(),
    t: nextTheme,
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog[open]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function showRun(run) {
  document.title = `${run.graph} · Tokenphormer`;
  $("run-name").textContent = run.graph;
  const accuracy = run.accuracy.test ?? run.accuracy.val;
  const which = run.accuracy.test === null ? "validation" : "test";
  const facts = [`${count(run.nodes)} nodes`, `${count(run.edges)} edges`, `${run.classes.length} classes`];
  if (accuracy !== null) facts.push(`${which} accuracy ${(100 * accuracy).toFixed(1)} %`);
  $("run-facts").textContent = facts.join(" · ");
}

const asked = () => new URLSearchParams(location.hash.slice(1)).get("node");

/** With nothing asked for: the surest mistake, which is the most telling node. */
async function firstNode() {
  for (const values of [{ status: "wrong", part: "test" }, { status: "wrong" }, {}]) {
    const found = await ask("/api/nodes", { ...values, order: "sure", limit: 1 });
    if (found.nodes.length) return found.nodes[0].id;
  }
  return null;
}

function follow() {
  takeToken();
  const id = asked();
  if (id !== null && id !== state.node) {
    calm();
    openNode(id);
    if (matchMedia("(max-width: 62rem)").matches) $("node-title").scrollIntoView({ block: "start" });
  }
}

async function start() {
  takeToken();
  startTheme();
  startTabs();
  startKeys();
  state.run = await askUntilReady("/api/run", {}, () => {
    $("run-facts").textContent = "The run is being loaded …";
  });
  showRun(state.run);
  startSearch();
  startDrawing();
  startNode();
  startConfusion(() => showTab("list", true));
  addEventListener("hashchange", follow);
  startMap();
  startList();
  if (asked() !== null && (await openNode(asked()))) return;
  const first = await firstNode();
  if (first !== null) {
    history.replaceState(null, "", `#node=${encodeURIComponent(first.toWellFormed())}`);
    await openNode(first);
  }
}

start().catch(complain);
