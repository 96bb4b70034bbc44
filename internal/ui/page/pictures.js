// Pictures: the traffic of an hour, the flows of a frontend, and the path of a packet.
import { h, count, bytes, percent } from './dom.js';

// curve returns the points of a series in a rectangle.
function curve(values, width, height, most) {
  const step = width / Math.max(1, values.length - 1);
  return values.map((v, i) => (i * step).toFixed(1) + ',' + (height - (most > 0 ? v / most : 0) * height).toFixed(1));
}

export function spark(minutes) {
  const values = minutes.map((m) => m.connections);
  const points = curve(values, 118, 20, Math.max(...values));
  return h('svg', { class: 'spark', viewBox: '-1 -2 120 24', role: 'img', 'aria-label': 'new connections in each minute of the last hour, at most ' + count(Math.max(...values)) },
    h('path', { class: 'area', d: 'M0,20 L' + points.join(' ') + ' L118,20 Z' }), h('path', { class: 'curve', d: 'M' + points.join(' L') }));
}

// hour draws one quantity over the last hour, with a scale.
export function hour(minutes, of, title, show) {
  const values = minutes.map(of), most = Math.max(...values), width = 560, height = 110;
  const points = curve(values, width, height, most);
  return h('svg', { class: 'hour', viewBox: '0 0 600 160', role: 'img', 'aria-label': title + ', at most ' + show(most) + ' in a minute' },
    h('text', { x: 20, y: 14, class: 'strong' }, title), h('text', { x: 580, y: 14, class: 'soft', 'text-anchor': 'end' }, 'most in a minute: ' + show(most)),
    h('g', { transform: 'translate(20 24)' },
      h('line', { class: 'axis', x1: 0, x2: width, y1: height, y2: height }),
      h('path', { class: 'area', d: 'M0,' + height + ' L' + points.join(' ') + ' L' + width + ',' + height + ' Z' }), h('path', { class: 'curve', d: 'M' + points.join(' L') }),
      values.map((v, i) => h('rect', { x: (i - 0.5) * width / 59, y: 0, width: width / 59, height, fill: 'transparent' }, h('title', {}, (59 - i) + ' min ago: ' + show(v))))),
    h('text', { x: 20, y: 152, class: 'soft' }, '60 min ago'), h('text', { x: 580, y: 152, class: 'soft', 'text-anchor': 'end' }, 'now'));
}

const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + '…' : text);

// flows draws a frontend on the left and its endpoints on the right. A line is as wide as the endpoint's share of the last hour's connections.
export function flows(frontend) {
  const shown = frontend.flows.map((flow, i) => ({ flow, endpoint: frontend.endpoints[i] })).sort((a, b) => b.flow.share - a.flow.share).slice(0, 30);
  const height = Math.max(90, shown.length * 48 + 10), middle = height / 2;
  return h('div', { class: 'scroll' }, h('svg', { class: 'flows', viewBox: `0 0 900 ${height}`, role: 'img', 'aria-label': 'flows from ' + frontend.address + ' to ' + shown.length + ' endpoints' },
    shown.map(({ flow, endpoint }, i) => {
      const y = 28 + i * 48;
      return h('g', {},
        h('path', { class: 'flow ' + endpoint.state + (flow.share > 0 ? '' : ' none'), d: `M240,${middle} C400,${middle} 400,${y} 520,${y}`, 'stroke-width': flow.share > 0 ? 1.5 + flow.share * 26 : 1.5 },
          h('title', {}, `${percent(flow.share)} of the last hour's connections; ${percent(flow.weightShare)} of the weights`)),
        h('rect', { class: 'box', x: 520, y: y - 21, width: 375, height: 42, rx: 8 }),
        h('circle', { class: 'dot ' + dot(endpoint.state), cx: 537, cy: y - 6, r: 5 }),
        h('text', { x: 549, y: y - 2, class: 'strong' }, short(endpoint.pod || endpoint.address, 34)),
        h('text', { x: 549, y: y + 14, class: 'soft' }, short(`${endpoint.address}${endpoint.node ? ' on ' + endpoint.node : ''}`, 46)),
        h('text', { x: 885, y: y - 2, class: 'strong', 'text-anchor': 'end' }, percent(flow.share)),
        h('text', { x: 885, y: y + 14, class: 'soft', 'text-anchor': 'end' }, endpoint.state + ', weight ' + percent(flow.weightShare)));
    }),
    h('rect', { class: 'box', x: 5, y: middle - 32, width: 235, height: 64, rx: 8 }),
    h('text', { x: 18, y: middle - 12, class: 'strong' }, short(frontend.address + '/' + frontend.protocol, 32)),
    h('text', { x: 18, y: middle + 6, class: 'soft' }, `${frontend.kind}${frontend.port ? ', port ' + short(frontend.port, 18) : ''}`),
    h('text', { x: 18, y: middle + 23, class: 'soft' }, `${count(frontend.now.connectionsPerSecond)} conn/s, out ${bytes(frontend.now.bytesOutPerSecond)}/s`)));
}

const dots = { Ready: '', Served: '', SlowStart: 'warn', Serving: 'warn', Draining: 'warn', Stopped: 'warn', Pending: 'warn', Excluded: 'warn' };
const dot = (state) => dots[state] ?? 'idle';

// stagesOf groups the steps of an explanation by the place in the kernel.
export function stagesOf(explanation) {
  const stages = [];
  for (const step of explanation.steps) {
    const last = stages.at(-1);
    if (last && last.at === step.at) last.steps.push(step);
    else stages.push({ at: step.at, steps: [step] });
  }
  for (const stage of stages) stage.verdict = ['stops', 'unknown', 'unclear', 'partly', 'depends', 'differs', 'noService'].find((v) => stage.steps.some((s) => s.verdict === v)) || 'passes';
  return stages;
}

// way draws the stages as stations on a line that ends where the packet stops.
export function way(explanation) {
  const stations = [{ at: explanation.from || 'any client', verdict: 'passes' }, ...stagesOf(explanation)];
  const stop = stations.findIndex((s) => s.verdict === 'stops');
  const ends = explanation.endpoints.length;
  stations.push({ at: ends === 1 ? '1 endpoint' : ends + ' endpoints', verdict: ends > 0 && explanation.verdict !== 'stops' ? 'passes' : 'idle' });
  const step = 118, width = stations.length * step;
  return h('div', { class: 'scroll' }, h('svg', { viewBox: `0 0 ${width} 92`, width, height: 92, role: 'img', 'aria-label': `the path of the packet: ${stations.map((s) => s.at + ' ' + s.verdict).join(', ')}` },
    stations.slice(1).map((s, i) => h('line', { class: 'way' + (explanation.verdict === 'stops' && (stop < 0 || i >= stop) ? ' cut' : ''), x1: i * step + 59, x2: (i + 1) * step + 59, y1: 30, y2: 30 })),
    stations.map((s, i) => {
      const x = i * step + 59, name = short(s.at, 17);
      return h('g', {}, h('title', {}, s.at + ': ' + s.verdict), h('circle', { class: 'dot ' + ({ passes: '', stops: 'stops', idle: 'idle', noService: 'idle' }[s.verdict] ?? 'warn'), cx: x, cy: 30, r: 11 }),
        s.verdict === 'stops' && h('path', { class: 'cross', d: `M${x - 5},25 l10,10 m0,-10 l-10,10` }),
        h('text', { x, y: 62, 'text-anchor': 'middle', class: 'strong' }, name), h('text', { x, y: 79, 'text-anchor': 'middle', class: 'soft' }, s.verdict === 'idle' ? '' : s.verdict));
    })));
}
