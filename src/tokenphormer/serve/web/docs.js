// The API's page: what openapi.json says, with forms to try it.

import { ask, takeToken } from "./api.js";
import { $, el } from "./dom.js";
import { complain } from "./state.js";
import { startTheme } from "./theme.js";

let spec = null;
const follow = (schema) => (schema?.$ref ? spec.components.schemas[schema.$ref.split("/").pop()] : (schema ?? {}));

/** What a schema asks for, in words. */
function describe(given) {
  const schema = follow(given);
  const options = (schema.anyOf ?? []).map(follow).filter((each) => each.type !== "null");
  if (options.length) return options.map(describe).join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const) return schema.const;
  const limits = Object.entries({ minimum: "from", maximum: "to", minLength: "at least", maxLength: "at most", minItems: "at least", maxItems: "at most" })
    .filter(([name]) => schema[name] !== undefined)
    .map(([name, word]) => `${word} ${schema[name].toLocaleString("en")}`);
  const what = schema.type === "array" ? `list of ${describe(schema.items)}` : (schema.title ?? schema.type ?? "");
  const base = ["string", "integer", "number", "boolean"].includes(schema.type) ? schema.type : what;
  return [base, ...limits].join(", ");
}

const EXAMPLES = {
  "/api/predict": (id) => ({ ids: [id] }),
  "/api/predict/new": (id) => ({ nodes: [{ id: "a new node", features: [1], indices: [0] }], edges: [{ source: "a new node", target: id }] }),
};

function operation(path, verb, about, id) {
  const fields = (about.parameters ?? []).map((each) => {
    const value = each.name === "id" ? id : (each.schema.default ?? "");
    const input = el("input", { name: each.name, value, autocomplete: "off" });
    const text = [describe(each.schema), each.description, each.required ? "required" : ""].filter(Boolean).join(" · ");
    return el("label", {}, el("span", {}, each.name), input, el("small", {}, text));
  });
  const body = about.requestBody && el("textarea", { "aria-label": "Body of the request", spellcheck: "false" }, JSON.stringify(EXAMPLES[path](id), null, 1));
  const answer = el("pre", { hidden: true, tabindex: "0", "aria-live": "polite" });
  const form = el("form", { class: "fields" }, ...fields, body ?? null, el("div", {}, el("button", {}, "Try it")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const options = { method: verb.toUpperCase() };
    if (body) Object.assign(options, { body: body.value, headers: { "Content-Type": "application/json" } });
    answer.hidden = false;
    answer.textContent = "…";
    try {
      const text = JSON.stringify(await ask(path, Object.fromEntries(new FormData(form)), options), null, 1);
      answer.textContent = text.length > 20000 ? `${text.slice(0, 20000)}\n…` : text;
    } catch (error) {
      answer.textContent = `${error.status}: ${error.message}`;
    }
  });
  const answers = Object.entries(about.responses).map(([status, each]) => `${status} ${each.description}`).join("\n");
  return el("details", { class: "operation" }, el("summary", {}, el("span", { class: "verb" }, verb.toUpperCase()), el("code", {}, path), el("span", { class: "muted" }, about.summary ?? "")),
    el("div", { class: "inside" }, el("p", {}, about.description ?? ""), form, answer, el("details", {}, el("summary", {}, "Answers"), el("pre", {}, answers))));
}

async function start() {
  takeToken();
  startTheme();
  spec = await ask("/openapi.json");
  $("lead").textContent = spec.info.description.trim().replace(/`/g, "");
  let id = "";
  try {
    id = (await ask("/api/nodes", { limit: 1 })).nodes[0].id;
  } catch (error) {
    complain(error);
  }
  const groups = new Map();
  for (const [path, verbs] of Object.entries(spec.paths)) {
    for (const [verb, about] of Object.entries(verbs)) {
      const tag = about.tags?.[0] ?? "";
      groups.set(tag, [...(groups.get(tag) ?? []), operation(path, verb, about, id)]);
    }
  }
  for (const [tag, operations] of groups) $("operations").append(el("h2", {}, tag), ...operations);
}

start().catch(complain);
