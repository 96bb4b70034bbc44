// The views. Each one is a function that turns answers into an element.
import { h, pill, table, count, bytes, seconds, percent, ago, clock } from './dom.js';
import { spark, hour, flows, stagesOf, way } from './pictures.js';

const service = (name) => '#/service/' + encodeURIComponent(name);
export const explainLink = (to) => '#/explain/' + encodeURIComponent(to);
const tile = (value, title) => h('div', { class: 'tile' }, h('b', {}, value), h('span', {}, title));
const card = (title, ...children) => h('section', { class: 'card' }, title && h('h2', {}, title), ...children);

function finding(f) {
  return h('div', { class: 'finding ' + f.severity }, h('p', {}, pill(f.severity), ' ', h('b', {}, f.subject), ': ', f.problem),
    f.evidence.map((e) => h('p', { class: 'mono soft' }, e)), h('p', {}, h('span', { class: 'soft' }, 'remedy: '), f.remedy));
}

function since(measured) {
  if (measured.error) return h('p', { class: 'bad' }, 'The counters cannot be read: ' + measured.error);
  const young = Date.now() - new Date(measured.since) < 3600e3;
  return h('p', { class: 'soft' }, young ? `Measured since ${clock(measured.since)}, when this command started.` : 'Measured in the last hour.',
    measured.left ? ` ${measured.left} busy virtual servers and endpoints have no history, because there are too many.` : '');
}

export function overview(o) {
  const agent = o.agent, totals = o.totals;
  return h('div', {},
    o.findings.length > 0 && card('Findings', o.findings.map(finding)),
    totals && h('div', { class: 'tiles' }, tile(count(totals.services), 'Services'), tile(count(totals.virtualServers), 'virtual servers'), tile(count(totals.destinations), 'destinations'),
      tile(count(totals.draining), 'draining'), tile(count(o.problems.count), 'problems'), tile(count(agent.drift), 'drift repaired'),
      tile(count(o.measured.now.connectionsPerSecond), 'connections/s'), tile(bytes(o.measured.now.bytesOutPerSecond) + '/s', 'out'), tile(bytes(o.measured.now.bytesInPerSecond) + '/s', 'in')),
    h('div', { class: 'columns' },
      card('Traffic of the last hour', since(o.measured), hour(o.measured.hour, (m) => m.connections, 'new connections', count), hour(o.measured.hour, (m) => m.bytesIn + m.bytesOut, 'bytes in and out', bytes)),
      card('From a change in the cluster to the kernel', latency(o.stages)),
      card('Agent', agentTable(o)),
      card('Busiest Services', services({ ...o.services, items: o.services.items.slice(0, 8) }, true), h('p', {}, h('a', { href: '#/services' }, `All ${o.services.count} Services`)))));
}

function latency(stages) {
  if (!stages.length) return h('p', { class: 'soft' }, 'No change since the agent started.');
  const most = Math.max(...stages.map((s) => s.p99)) || 1;
  return h('div', {}, table([['Stage', 'wide'], ['Median', 'number'], ['99 %', 'number'], ['Longest', 'number'], ['', 'wide']],
    stages.map((s) => ({ cells: [s.name, seconds(s.median), seconds(s.p99), seconds(s.max), meter(s.p99 / most)] }))),
  h('p', { class: 'soft' }, `The latest ${stages[0].count} changes. "waited" is the time before the sync began.`));
}

function meter(share, more) {
  const bar = h('i', { class: more ? 'more' : null });
  bar.style.width = Math.min(100, share * 100) + '%';
  return h('span', { class: 'meter' }, bar);
}

function agentTable(o) {
  if (!o.agent) return h('p', { class: 'bad' }, 'No agent responds.');
  const rows = [['node', o.node.name], ['version', o.node.version], ['kernel', o.node.kernel], ['data plane', o.node.dataPlane || 'ipvs'], ['rules', o.node.rules],
    ['started', ago(o.node.started)], ['last sync', o.agent.lastSync ? `${ago(o.agent.lastSync.started)}, ${seconds(o.agent.lastSync.seconds)}` : 'none'],
    ['last full sync', o.agent.lastFullSync ? `${ago(o.agent.lastFullSync.started)}, ${seconds(o.agent.lastFullSync.seconds)}` : 'none'],
    ...o.sources.map((s) => ['source ' + s.name, s.error || (s.lastContact ? 'last contact ' + ago(s.lastContact) : 'no contact yet')])];
  return h('table', {}, h('tbody', {}, rows.map(([name, value]) => h('tr', {}, h('td', { class: 'soft' }, name), h('td', {}, value)))));
}

export function services(list, short) {
  return table([['Service', 'wide'], ['State', ''], ['Ready', 'number'], ['Active', 'number'], ['Conn/s', 'number'], ['In/s', 'number'], ['Out/s', 'number'], ['Last hour', '']].slice(0, short ? 5 : 8),
    list.items.map((s) => ({
      open: service(s.service),
      cells: [h('div', {}, h('a', { href: service(s.service) }, s.service || '(no agent)'), !short && h('div', { class: 'soft mono' }, s.kinds.join(', ') + ' ' + s.addresses.slice(0, 2).join(' ') + (s.addresses.length > 2 ? ` and ${s.addresses.length - 2} more` : ''))),
        pill(s.state), `${s.ready}/${s.endpoints}`, count(s.active), count(s.connectionsPerSecond), bytes(s.bytesInPerSecond), bytes(s.bytesOutPerSecond), spark(s.hour)].slice(0, short ? 5 : 8),
    })), 'No Service matches.');
}

export function oneService(d) {
  return h('div', {}, h('h2', {}, d.service), d.unknown.map((what) => h('p', { class: 'bad' }, 'Unknown: ' + what)), since(d), d.problems.length > 0 && card('Problems', h('ul', {}, d.problems.map((p) => h('li', {}, p)))),
    d.frontends.map((f) => card(`${f.kind} ${f.address}/${f.protocol}`,
      h('p', {}, pill(f.state), ' ', f.reason || '', f.scheduler && ` scheduler ${f.scheduler}`, f.affinitySeconds ? `, affinity ${f.affinitySeconds} s` : '', f.policy && `, policy ${f.policy}`, ' ', h('a', { href: explainLink(`${f.address}/${f.protocol}`) }, 'Show the path of a packet')),
      f.endpoints.length > 0 && flows(f), f.endpoints.length > 30 && h('p', { class: 'soft' }, `The picture shows the 30 busiest of ${f.endpoints.length} endpoints.`),
      hour(f.hour, (m) => m.connections, 'new connections', count), endpoints(f))));
}

function endpoints(f) {
  return table([['Endpoint', 'wide'], ['State', ''], ['Weight', 'number'], ['Active', 'number'], ['Conn/s', 'number'], ['Connections', 'number'], ['In', 'number'], ['Out', 'number'], ['Share', 'wide']],
    f.endpoints.map((e, i) => {
      const flow = f.flows[i];
      return { cells: [h('div', {}, e.pod || e.address, h('div', { class: 'soft mono' }, `${e.address} ${e.node || ''} ${e.zone || ''}`)), h('span', {}, pill(e.state), e.since ? ' ' + ago(e.since) : ''),
        e.weight ?? '-', e.connections ? count(e.connections.active) : '-', count(flow.now.connectionsPerSecond), count(flow.total.connections), bytes(flow.total.bytesIn), bytes(flow.total.bytesOut),
        h('div', {}, meter(flow.share), meter(flow.weightShare, true), h('span', { class: 'soft' }, `${percent(flow.share)} of connections, ${percent(flow.weightShare)} of weights`))] };
    }), 'No endpoints.');
}

export function explanation(list) {
  return h('div', {}, list.map((e) => card(`${e.from || 'any client'} to ${e.address}/${e.protocol}${e.service ? ', ' + e.service : ''}`,
    h('p', {}, pill(e.verdict), ' ', e.kind || '', e.connection ? ', the connection from ' + e.connection : ''), e.reasons.length > 0 && h('ul', {}, e.reasons.map((r) => h('li', {}, r))), way(e),
    stagesOf(e).map((stage) => h('div', {}, h('h3', {}, stage.at), stage.steps.map((s) => h('div', { class: 'step ' + s.verdict }, h('p', {}, s.message), h('p', { class: 'mono soft' }, s.object))))),
    e.endpoints.length > 0 && h('h3', {}, 'Endpoints'),
    e.endpoints.length > 0 && table([['Endpoint', 'wide'], ['Node', ''], ['Weight', 'number'], ['Sees the client as', '']], e.endpoints.map((p) => ({ cells: [h('div', {}, p.pod || p.address, p.pod && h('div', { class: 'soft mono' }, p.address)), p.node || '', p.weight, p.source] }))))));
}

const names = (some) => some.items.slice(0, 3).join(', ') + (some.count > 3 ? ` and ${some.count - 3} more` : '');

export function changes(list) {
  return h('div', { class: 'card' }, list.dropped > 0 && h('p', { class: 'soft' }, `The agent has forgotten ${list.dropped} older entries.`),
    table([['Time', ''], ['Kind', ''], ['Cause', 'wide'], ['Services', 'wide'], ['Changes', ''], ['Took', 'number'], ['Result', 'wide']], list.items.toReversed().map((e) => ({
      cells: [h('span', { title: e.time }, clock(e.time) + (e.repeated ? `, ${e.repeated} more` : '')), e.kind, e.causes.map((c) => c.reason + (c.objects.count ? ': ' + names(c.objects) : '')).join('; '), names(e.services),
        e.operations.map((o) => ['+' + o.added, '~' + o.changed, '-' + o.removed].filter((t) => !t.endsWith('0') || t.length > 2).join(' ') + ' ' + o.object).join(', '),
        h('span', { title: Object.entries(e.stages).map(([k, v]) => k + ' ' + seconds(v)).join(', ') }, seconds(e.seconds)), result(e)],
    })), 'Nothing has changed since the agent started.'));
}

function result(e) {
  if (e.error) return h('span', { class: 'bad' }, e.error);
  if (e.failures.count) return h('span', { class: 'bad' }, e.failures.items.map((f) => f.operation + ': ' + f.error).join('; '));
  if (e.drift.count) return 'repaired ' + names(e.drift);
  if (e.newProblems.count) return h('span', { class: 'bad' }, names(e.newProblems));
  return e.resolvedProblems.count ? 'resolved ' + names(e.resolvedProblems) : 'done';
}

export const examining = 'examining';

export function problems(o, diagnosis, runDoctor) {
  return h('div', {}, card('Findings', o.findings.length ? o.findings.map(finding) : h('p', { class: 'soft' }, 'None.')),
    card('Problems of objects', o.problems.items.length ? h('ul', {}, o.problems.items.map((p) => h('li', {}, p))) : h('p', { class: 'soft' }, 'None.'), o.problems.count > o.problems.items.length && h('p', { class: 'soft' }, `${o.problems.count - o.problems.items.length} more are not shown.`)),
    card('Drift: what other programs changed, and the agent repaired', drift(o.agent)),
    card('Doctor', h('p', { class: 'soft' }, 'doctor examines the node and follows packets to a sample of Services. It takes a few seconds.'), h('button', { type: 'button', id: 'doctor', disabled: diagnosis.examining, click: runDoctor }, 'Examine this node'), h('div', { id: 'diagnosis', 'aria-live': 'polite' }, diagnosis.examining ? examining : diagnosis.result)));
}

function drift(agent) {
  if (!agent) return h('p', { class: 'soft' }, 'Unknown, because no agent responds.');
  return table([['Part', ''], ['Kind', ''], ['Differences', 'number'], ['Last', ''], ['Latest', 'wide']], agent.drifts.map((d) => ({ cells: [d.part, d.kind, d.count, ago(d.last), h('span', { class: 'mono' }, d.what.join('; '))] })), 'None since the agent started.');
}

export function doctor(report) {
  return h('div', {}, h('p', {}, pill(report.verdict)), report.findings.map(finding), (report.unchecked || []).length > 0 && h('div', {}, h('h3', {}, 'Not checked'), h('ul', {}, report.unchecked.map((u) => h('li', {}, u)))));
}
