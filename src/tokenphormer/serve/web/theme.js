// Light, dark, or as the system has it.

import { $, el } from "./dom.js";
import { tell } from "./state.js";

const KEY = "tokenphormer-theme";
const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

function show(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = $("theme");
  button.replaceChildren(SIGNS[theme], el("span", { class: "word" }, ` ${theme[0].toUpperCase()}${theme.slice(1)}`));
  button.setAttribute("aria-label", `Colours: ${theme}`);
  tell("theme");
}

const current = () => (THEMES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system");

export function nextTheme() {
  const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
  localStorage.setItem(KEY, next);
  show(next);
}

export function startTheme() {
  show(current());
  $("theme").addEventListener("click", nextTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => tell("theme"));
}
