// Where the nodes of a neighbourhood stand, and which names can be read. Everything is in pixels around the middle.

const WIDEST = 1.4 * Math.PI; // of what hangs on one node, so that it stays on that node's side
const ROOM = 24; // that a node wants on its ring
const INNERMOST = 64; // the first ring, around the large node in the middle
const LEAST = 38; // between the others
export const CROWD = 16; // nodes of a ring that are too many for their names to be read
const LETTER = 6.4; // about how wide
const HEIGHT = 14;

/** Angles and rings: a tree by distance, where every node hangs on one node of the ring inside it. */
export function arrange(found, visited, width, height) {
  const { nodes } = found;
  const rings = [...new Set(nodes.map((node) => node.distance))].sort((a, b) => a - b);
  const level = nodes.map((node) => rings.indexOf(node.distance));
  const children = tree(found, level).map((each) => interleave(each, visited));
  const weight = nodes.map(() => 1);
  const weigh = (i) => {
    const below = children[i].reduce((sum, child) => sum + weigh(child), 0);
    weight[i] = Math.max(1, below ** 0.6); // a crowd takes more room than one alone, but leaves some
    return weight[i];
  };
  weigh(0);
  const angle = nodes.map(() => 0);
  const spread = (i, middle, wide) => {
    angle[i] = middle;
    const total = children[i].reduce((sum, child) => sum + weight[child], 0);
    let at = middle - wide / 2;
    for (const child of children[i]) {
      const share = (wide * weight[child]) / total;
      spread(child, at + share / 2, Math.min(share, WIDEST));
      at += share;
    }
  };
  spread(0, Math.PI / 2, 2 * Math.PI);
  const radius = radii(rings, level, angle, Math.min(width, height));
  const places = nodes.map((_, i) => ({ x: Math.cos(angle[i]) * radius[level[i]], y: Math.sin(angle[i]) * radius[level[i]] }));
  return { places, rings, radius, level, angle };
}

function tree({ nodes, edges, walks }, level) {
  const near = nodes.map(() => new Set());
  const steps = walks.flatMap((walk) => walk.path.slice(1).map((to, i) => [walk.path[i], to]));
  for (const [a, b] of [...edges, ...steps]) {
    near[a].add(b);
    near[b].add(a);
  }
  const children = nodes.map(() => []);
  for (let i = 1; i < nodes.length; i++) {
    const parents = [...near[i]].filter((j) => level[j] < level[i]).sort((a, b) => level[b] - level[a] || a - b);
    children[parents[0] ?? 0].push(i);
  }
  return children;
}

/** Those on walks, which have names to show, evenly among the others. */
function interleave(members, visited) {
  const [some, rest] = [members.filter((i) => visited.has(i)), members.filter((i) => !visited.has(i))];
  const mixed = [];
  for (const [k, each] of some.entries()) {
    mixed.push(...rest.slice(Math.round((k * rest.length) / some.length), Math.round(((k + 0.5) * rest.length) / some.length)), each);
    mixed.push(...rest.slice(Math.round(((k + 0.5) * rest.length) / some.length), Math.round(((k + 1) * rest.length) / some.length)));
  }
  return some.length ? mixed : rest;
}

/** A crowded ring gets more room than an empty one; the outermost one is as large as it can be. */
function radii(rings, level, angle, largest) {
  const radius = [0];
  for (let ring = 1; ring < rings.length; ring++) {
    const here = angle.filter((_, i) => level[i] === ring).sort((a, b) => a - b);
    const gaps = here.slice(1).map((a, i) => Math.max(0.01, a - here[i])).sort((a, b) => a - b);
    const usual = gaps[here.length > CROWD ? Math.floor(gaps.length / 3) : 0] ?? 2 * Math.PI;
    const least = ring === 1 ? INNERMOST : radius[ring - 1] + LEAST;
    radius[ring] = Math.max(least, Math.min(ROOM / usual, radius[ring - 1] + 3.5 * LEAST));
  }
  const scale = largest / (radius[radius.length - 1] || 1);
  return radius.map((each) => each * scale);
}

/** The middle of the widest gap on a ring: where the ring's own name can stand. */
function gap(angles) {
  if (!angles.length) return -Math.PI / 2;
  const sorted = [...angles].sort((a, b) => a - b);
  const gaps = sorted.map((a, i) => (i + 1 < sorted.length ? sorted[i + 1] - a : sorted[0] + 2 * Math.PI - a));
  const widest = gaps.indexOf(Math.max(...gaps));
  return sorted[widest] + gaps[widest] / 2;
}

export function ringNames({ rings, radius, level, angle }) {
  return rings.slice(1).map((distance, k) => {
    const at = gap(angle.filter((_, i) => level[i] === k + 1));
    return { distance, radius: radius[k + 1], x: Math.cos(at) * radius[k + 1], y: Math.sin(at) * radius[k + 1] };
  });
}

const SIDES = {
  east: (x, y, w, r) => [x + r, y - HEIGHT / 2, w],
  west: (x, y, w, r) => [x - r - w, y - HEIGHT / 2, w],
  over: (x, y, w, r) => [x - w / 2, y - r - HEIGHT, w],
  under: (x, y, w, r) => [x - w / 2, y + r, w],
};
const overlap = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];

/** For each node, in the order of `wanted`, a side on which its name covers nothing, or null. */
export function nameSides(places, sizes, names, wanted, taken, width, height) {
  const sides = places.map(() => null);
  const marks = places.map(({ x, y }, i) => [x - sizes[i] / 2, y - sizes[i] / 2, sizes[i], sizes[i]]);
  const boxes = [...taken];
  for (const i of wanted) {
    const { x, y } = places[i];
    const outward = Math.abs(x) > 0.5 * Math.abs(y) ? [x > 0 ? "east" : "west", y > 0 ? "under" : "over"] : [y > 0 ? "under" : "over", x > 0 ? "east" : "west"];
    const order = i === 0 ? ["under", "over", "east", "west"] : [...outward, ...Object.keys(SIDES).filter((side) => !outward.includes(side))];
    for (const side of order) {
      const [left, top, wide] = SIDES[side](x, y, names[i].length * LETTER, sizes[i] / 2 + 3);
      const box = [left, top, wide, HEIGHT];
      const inside = left > -width / 2 + 2 && left + wide < width / 2 - 2 && top > -height / 2 + 2 && top + HEIGHT < height / 2 - 2;
      // The node in the middle has its name in any case.
      const free = inside && ![...boxes, ...marks.filter((_, j) => j !== i)].some((other) => overlap(box, other));
      if (free || i === 0) {
        sides[i] = side;
        boxes.push(box);
        break;
      }
    }
  }
  return sides;
}
