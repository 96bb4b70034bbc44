// Elements and number formats. Text from the cluster becomes text nodes, never HTML.

const svgTags = new Set(['svg', 'path', 'rect', 'circle', 'line', 'text', 'g', 'title']);

// h returns an element. Attributes whose value is null are left out; a function becomes the listener for the event of that name.
export function h(tag, attributes = {}, ...children) {
  const element = svgTags.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : String(c))));
  return element;
}

export const pill = (text) => h('span', { class: 'pill ' + text }, text);

// count shortens a number: 1234567 becomes 1.23M.
export function count(n) {
  if (!n) return '0';
  for (const [least, unit] of [[1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) if (n >= least) return (n / (unit === 'k' ? 1e3 : least)).toPrecision(3) + unit;
  return n >= 100 ? n.toFixed(0) : String(+n.toPrecision(3));
}

// bytes shortens a number of bytes by powers of 1,024.
export function bytes(n) {
  let unit = 0;
  while (n >= 1000 && unit < 4) { n /= 1024; unit++; }
  return (unit ? n.toPrecision(3) : Math.round(n)) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit];
}

export function seconds(s) {
  if (s >= 100) return s.toFixed(0) + ' s';
  if (s >= 1) return s.toPrecision(3) + ' s';
  return s >= 0.001 ? (s * 1000).toPrecision(3) + ' ms' : Math.round(s * 1e6) + ' µs';
}

export const percent = (share) => (share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0) + ' %';

// ago returns how long ago a time was.
export function ago(time, now = Date.now()) {
  const s = Math.max(0, (now - new Date(time)) / 1000);
  for (const [size, unit] of [[86400, 'd'], [3600, 'h'], [60, 'min']]) if (s >= size) return Math.floor(s / size) + ' ' + unit + ' ago';
  return Math.floor(s) + ' s ago';
}

export const clock = (time) => new Date(time).toLocaleTimeString();

// table returns a table. columns are [title, class]; rows are {cells, open}, where open is the address of the row's page.
export function table(columns, rows, empty) {
  if (!rows.length) return h('p', { class: 'soft' }, empty);
  return h('table', { class: 'cards' },
    h('thead', {}, h('tr', {}, columns.map(([title, style]) => h('th', { class: style || null, scope: 'col' }, title)))),
    h('tbody', {}, rows.map((row) => h('tr', { 'data-open': row.open || null, click: row.open ? (e) => { if (!e.target.closest('a, button')) location.hash = row.open; } : null },
      row.cells.map((cell, i) => h('td', { class: columns[i][1] || null, 'data-title': columns[i][1] === 'wide' ? null : columns[i][0] || null }, cell))))));
}
