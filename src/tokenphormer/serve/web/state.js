// What the parts of the page share: the run, the node that is open, and which nodes are looked at.

const changes = new EventTarget();

export const state = {
  run: null,
  node: null,
  filter: { status: "all", part: "", truth: "", predicted: "" },
};

export const on = (what, then) => changes.addEventListener(what, then);
export const tell = (what) => changes.dispatchEvent(new Event(what));

export function setFilter(values) {
  Object.assign(state.filter, values);
  tell("filter");
}

export const open = (id) => {
  location.hash = `node=${encodeURIComponent(id.toWellFormed())}`;
};

/** The class numbers that the filter names; -1 is any. */
export const wantedClasses = () => ({
  truth: state.run.classes.indexOf(state.filter.truth),
  predicted: state.run.classes.indexOf(state.filter.predicted),
});

export function complain(error) {
  if (error.name === "AbortError") return;
  const notice = document.getElementById("notice");
  notice.textContent = error.message;
  notice.hidden = false;
}
export const calm = () => {
  document.getElementById("notice").hidden = true;
};
