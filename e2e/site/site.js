// Set the theme before the browser draws the page. Browsers may deny storage to pages that are opened as files.
const root = document.documentElement;
const stored = value => { try { return value ? localStorage.setItem('theme', value) : localStorage.getItem('theme'); } catch { return null; } };
if (stored()) root.dataset.theme = stored();

let sections; // the search index, which search.js passes to found()
let query, results;

function found(all) {
  sections = all;
  show();
}

// score returns 0 if a section lacks one of the words. Words in headings count more.
function score(section, words) {
  const heading = section.h.toLowerCase(), page = section.p.toLowerCase(), text = section.t.toLowerCase();
  let total = 0;
  for (const word of words) {
    const points = (heading.includes(word) ? 12 : 0) + (page.includes(word) ? 6 : 0) + Math.min(4, text.split(word).length - 1);
    if (!points) return 0;
    total += points + (heading === word || page === word ? 10 : 0);
  }
  return total;
}

function element(name, parts) {
  const e = document.createElement(name);
  e.append(...parts);
  return e;
}

// snippet returns the text around the first search word, and highlights all search words.
function snippet(text, words) {
  const at = Math.max(0, Math.min(...words.map(w => text.toLowerCase().indexOf(w)).filter(i => i >= 0)));
  const start = at === Infinity ? 0 : Math.max(0, at - 50);
  const cut = (start ? '… ' : '') + text.slice(start, start + 170);
  const pattern = new RegExp('(' + words.map(w => w.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|') + ')', 'i');
  return element('span', cut.split(pattern).map((part, i) => i % 2 ? element('mark', [part]) : part));
}

function show() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.hidden = !words.length;
  if (!words.length || !sections) return;
  const best = sections.map(s => [score(s, words), s]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 20);
  results.replaceChildren(...best.map(([, s]) => {
    const link = element('a', [element('b', [s.p]), s.h === s.p ? '' : ' › ' + s.h, snippet(s.t, words)]);
    link.href = root.dataset.root + s.l;
    link.onclick = () => { results.hidden = true; };
    return element('li', [link]);
  }));
  if (!best.length) results.append(element('p', ['No page has these words.']));
}

// load loads the search index when the reader first uses the search. Browsers load scripts from files, but block fetch requests to files.
function load() {
  if (document.getElementById('index')) return;
  const script = element('script', []);
  script.id = 'index';
  script.src = root.dataset.root + 'search.js';
  document.head.append(script);
}

addEventListener('DOMContentLoaded', () => {
  query = document.getElementById('query');
  results = document.getElementById('results');
  query.onfocus = load;
  query.oninput = show;
  document.getElementById('theme').onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    stored(root.dataset.theme = dark ? 'light' : 'dark');
  };
  document.getElementById('menu').onclick = event => {
    event.target.ariaExpanded = document.getElementById('pages').classList.toggle('open');
  };
  addEventListener('click', event => { if (!event.target.closest('.search')) results.hidden = true; });
  addEventListener('keydown', event => {
    const links = [...results.querySelectorAll('a')], at = links.indexOf(document.activeElement);
    if (event.key === '/' && event.target === document.body) query.focus();
    else if (event.key === 'Escape') results.hidden = true;
    else if (event.key === 'Enter' && event.target === query && links.length) links[0].click();
    else if (event.key === 'ArrowDown' && !results.hidden && at + 1 < links.length) links[at + 1].focus();
    else if (event.key === 'ArrowUp' && at >= 0) (links[at - 1] ?? query).focus();
    else return;
    event.preventDefault();
  });
});
