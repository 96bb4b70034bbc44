// Routes, requests and keys.
import { h } from './dom.js';
import * as views from './views.js';

const $ = (id) => document.getElementById(id);
const tabs = ['overview', 'services', 'explain', 'changes', 'problems'];
const every = 5000; // milliseconds between two requests
const list = { filter: '', sort: 'connections', limit: 100 };
let node = '', chosen = -1, diagnosis = {}, round = 0; // a change of node replaces diagnosis

async function ask(question, parameters = {}) {
  const response = await fetch('api/' + question + '?' + new URLSearchParams({ node, ...parameters })).catch(() => {
    throw new Error('The command does not respond. Start it again, and use its new link.');
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function route() {
  const [, view = 'overview', argument = ''] = location.hash.split('/');
  return { view, argument: decodeURIComponent(argument) };
}

function show(...children) {
  $('main').replaceChildren(...children);
  mark();
}

function setVerdict(o) {
  $('verdict').textContent = o.verdict;
  $('verdict').className = 'pill ' + o.verdict;
  document.title = `${o.node ? o.node.name : node} ${o.verdict} - kube-ipvs`;
}

// judge shows the verdict in a view that does not.
async function judge(current) {
  const o = await ask('overview', { limit: 1 }).catch(() => ({ verdict: 'unknown' }));
  if (current === round) setVerdict(o);
}

// Each page draws a view. first is true if the user has just opened it.
const pages = {
  async overview() { const o = await ask('overview'); return () => { setVerdict(o); show(views.overview(o)); }; },
  async services(_, first) {
    const o = await ask('overview', list);
    return () => { setVerdict(o); if (first || !$('list')) show(listBar(), h('div', { id: 'list', class: 'card' })); $('list').replaceChildren(views.services(o.services), more(o.services)); mark(); };
  },
  async service(name) { const d = await ask('service', { service: name }); return () => show(views.oneService(d)); },
  async changes() { const c = await ask('changes'); return () => show(views.changes(c)); },
  async problems() { const o = await ask('overview'); return () => { setVerdict(o); show(views.problems(o, diagnosis, runDoctor)); }; },
  async explain(argument) {
    const [to, from = ''] = argument.split('|');
    show(explainForm(to, from), h('div', { id: 'answer', 'aria-live': 'polite' }, to ? 'reading the kernel' : null));
    if (!to) return () => $('to').focus();
    const answer = await ask('explain', { to, from });
    return () => $('answer').replaceChildren(views.explanation(answer));
  },
};

async function draw(first) {
  const { view, argument } = route();
  if (view === 'explain' && !first) { await judge(round); return; } // the answer may still be on its way
  const current = ++round;
  for (const a of document.querySelectorAll('nav a')) a.toggleAttribute('aria-current', a.hash === '#/' + (view === 'service' ? 'services' : view));
  const judged = ['service', 'changes', 'explain'].includes(view) && judge(current);
  try {
    const update = await (pages[view] || pages.overview)(argument, first);
    if (current !== round) return; // the user has opened another view
    $('error').hidden = true;
    const y = scrollY;
    update();
    if (!first) scrollTo(0, y);
  } catch (error) {
    if (current !== round) return;
    $('error').textContent = error.message;
    $('error').hidden = false;
    if (!judged) setVerdict({ verdict: 'unknown' });
    if (view === 'explain' && $('answer')) $('answer').replaceChildren();
  }
  document.body.dataset.drawn = view; // for tests
  await judged;
}

function listBar() {
  const filter = h('input', { id: 'filter', type: 'search', placeholder: 'Filter: name, namespace, kind, address, state', value: list.filter, 'aria-label': 'Filter', input: () => { list.filter = filter.value; chosen = -1; draw(false); } });
  const sort = h('select', { id: 'sort', 'aria-label': 'Sort by', change: () => { list.sort = sort.value; draw(false); } },
    [['connections', 'new connections'], ['active', 'open connections'], ['in', 'bytes in'], ['out', 'bytes out'], ['name', 'name'], ['state', 'state']].map(([value, text]) => h('option', { value, selected: value === list.sort }, text)));
  return h('div', { class: 'bar' }, filter, h('label', {}, 'sort by ', sort));
}

function more(s) {
  const hidden = s.matching - s.items.length;
  return h('p', { class: 'soft' }, `${s.matching} of ${s.count} Services match.`, hidden > 0 && list.limit < 1000 && h('button', { type: 'button', click: () => { list.limit = 1000; draw(false); } }, `Show up to ${Math.min(1000, s.matching)}`),
    hidden > 0 && list.limit >= 1000 && ` ${hidden} are not shown; use the filter.`);
}

function explainForm(to, from) {
  const target = h('input', { id: 'to', value: to, required: true, placeholder: '10.96.0.10:53/udp or kube-system/kube-dns:dns', 'aria-label': 'To' });
  const client = h('input', { id: 'from', value: from, placeholder: 'any client, or an address such as 10.244.1.7', 'aria-label': 'From' });
  return h('form', { class: 'bar', submit: (e) => { e.preventDefault(); const hash = views.explainLink(target.value + (client.value ? '|' + client.value : '')); if (location.hash === hash) draw(true); else location.hash = hash; } },
    h('label', {}, 'To'), target, h('label', {}, 'From'), client, h('button', {}, 'Explain'));
}

async function runDoctor() {
  const current = diagnosis = { examining: true };
  $('doctor').disabled = true;
  $('diagnosis').textContent = views.examining;
  try { current.result = views.doctor(await ask('doctor')); } catch (error) { current.result = h('p', { class: 'bad' }, error.message); }
  current.examining = false;
  if (current === diagnosis) draw(false);
}

function changeNode() {
  node = $('node').value;
  diagnosis = {};
  $('verdict').textContent = 'loading';
  $('verdict').className = 'pill';
  document.title = `${node} - kube-ipvs`;
  $('error').hidden = true;
  $('main').replaceChildren();
  draw(true);
}

// mark shows which row is chosen.
function mark(move = 0) {
  const rows = [...document.querySelectorAll('tr[data-open]')];
  chosen = Math.min(rows.length - 1, Math.max(move ? 0 : -1, chosen + move));
  rows.forEach((row, i) => row.classList.toggle('chosen', i === chosen));
  if (move && rows[chosen]) rows[chosen].scrollIntoView({ block: 'nearest' });
  return rows[chosen];
}

const themes = { light: 'dark', dark: 'light' };

function changeTheme() {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  document.documentElement.dataset.theme = themes[document.documentElement.dataset.theme || dark];
}

const keys = {
  '/': () => ($('filter') || $('to'))?.focus(), j: () => mark(1), k: () => mark(-1), ArrowDown: () => mark(1), ArrowUp: () => mark(-1), t: changeTheme, '?': toggleKeys,
  Enter: () => { const row = mark(); if (row) location.hash = row.dataset.open; }, Escape: () => { if (route().view === 'service') location.hash = '#/services'; else history.back(); },
};
tabs.forEach((tab, i) => { keys[i + 1] = () => { location.hash = '#/' + tab; }; });

function toggleKeys() { if ($('keys').open) $('keys').close(); else $('keys').showModal(); }

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || ($('keys').open && e.key !== '?')) return;
  if (e.target.matches('input, select')) { if (e.key === 'Escape') e.target.blur(); return; }
  if (e.key === 'Enter' && e.target.matches('a, button')) return;
  if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
});
addEventListener('hashchange', () => { chosen = -1; scrollTo(0, 0); draw(true); });
$('theme').addEventListener('click', changeTheme);
$('help').addEventListener('click', toggleKeys);
$('node').addEventListener('change', changeNode);

const { nodes } = await ask('nodes');
node = nodes[0];
$('node').replaceChildren(...nodes.map((name) => h('option', {}, name)));
await draw(true);
for (;;) {
  await new Promise((done) => { setTimeout(done, every); });
  if (document.visibilityState === 'visible') await draw(false);
}
