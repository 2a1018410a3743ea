// Small pieces that every part of the page uses. Text goes in as text: nothing here reads HTML.

export const $ = (id) => document.getElementById(id);

/** An element with properties, CSS variables (names that begin with --), attributes and children. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  if (share < 1 && share >= 0.9995) return "> 99.9 %";
  return `${(100 * share).toFixed(share < 0.0995 || share >= 0.995 ? 1 : 0).replace(".0", "")} %`;
}
export const count = (number) => number.toLocaleString("en");

/** A weight with its sign, to three digits that mean something. */
export function signed(value, withSign = true) {
  const size = Math.abs(value);
  if (size < 5e-7) return "0";
  const text = size >= 0.0005 ? size.toFixed(3) : size.toExponential(0).replace("e-", " × 10⁻").replace(/\d+$/, raised);
  return `${value < 0 ? "−" : withSign ? "+" : ""}${text}`;
}
const raised = (digits) => [...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");

/** Half a surrogate pair, which an id may hold, cannot stand in an address. */
const encode = (text) => encodeURIComponent(text.toWellFormed());
export const nodeHref = (id) => `#node=${encode(id)}`;

const CLASS_COLOURS = 12;
export const classColour = (number) =>
  number >= 0 && number < CLASS_COLOURS ? `var(--class-${number})` : "var(--class-other)";
export const walkColour = (number) => `var(--walk-${number})`;

const probe = document.createElement("i");
/** What a colour of the style sheet is right now, for canvases. */
export function resolved(colour) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = colour;
  return getComputedStyle(probe).color;
}

/** A mark whose shape says right, wrong or unlabelled, and whose colour says the class. */
export const mark = (node, classes) =>
  el("span", {
    class: `dot ${node.outcome}`,
    "--c": classColour(classes.indexOf(node.predicted)),
    title: node.outcome,
  });

/** A line on a prediction. */
export function verdict(node) {
  if (node.label === null) return `${node.predicted}, ${percent(node.probability)}`;
  if (node.outcome === "right") return `${node.predicted}, ${percent(node.probability)}, right`;
  return `${node.predicted}, ${percent(node.probability)}, but is ${node.label}`;
}

export function bar(share, options = {}) {
  const inner = el("i", { class: options.against ? "against" : null, "--w": `${Math.min(100, 100 * share)}%`, "--c": options.colour });
  return el("span", { class: "track", "aria-hidden": "true" }, inner);
}
