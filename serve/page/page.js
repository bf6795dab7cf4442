/** The page of a server: its numbers, its learning curve, and a game that this browser plays as a client. */
import { RemoteAgent } from "./springbok.js";
import { ACTION, CartPole, NAME, OBSERVATION, SECONDS, isCartPole } from "./cartpole.js";

const byId = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const tiny = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const shown = (value, format = short) => (Number.isFinite(value) ? format.format(value) : "–");

function running(seconds) {
  return Number.isFinite(seconds) ? `running for ${duration(seconds)}` : "running";
}

function duration(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${count.format(hours)} h ${minutes} min` : minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

/** An element with text, attributes and children. */
function make(tag, text = "", attributes = {}, space = "http://www.w3.org/1999/xhtml") {
  const made = document.createElementNS(space, tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function showNumbers(status) {
  const latency = status.latency_ms ?? {};
  const numbers = {
    Steps: shown(status.steps, count),
    "Steps/s": shown(status.steps_per_second),
    Episodes: shown(status.episodes, count),
    "Mean return": shown(status.return_mean),
    Seats: shown(status.seats, count),
    Updates: shown(status.version, count),
    "Latency p50, p99": Number.isFinite(latency.p50) ? `${shown(latency.p50, tiny)}, ${shown(latency.p99, tiny)} ms` : "–",
  };
  const known = Object.entries(numbers).filter(([, value]) => value !== "–");
  const tiles = known.map(([name, value]) => {
    const tile = make("div");
    tile.append(make("dt", name), make("dd", value));
    return tile;
  });
  byId("numbers").replaceChildren(...tiles);
}

function showClients(clients) {
  const rows = clients.map((client) => {
    const row = make("tr");
    const name = make("td", client.name);
    if (client.exploit) name.append(make("span", "greedy", { class: "tag" }));
    row.append(name, ...[client.seats, client.steps, client.episodes].map((value) => make("td", shown(value, count))));
    row.append(make("td", shown(client.return_mean)));
    return row;
  });
  byId("rows").replaceChildren(...rows);
  byId("nobody").hidden = rows.length > 0;
}

/** Whole steps of an axis, about four, whose numbers are short. */
function ticks(low, high) {
  const raw = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => (first + index) * step);
}

let points = []; // of the learning curve: steps, mean return

function showCurve() {
  const { clientWidth: width, clientHeight: height } = byId("curve");
  const [left, right, top, bottom] = [48, 12, 12, 40];
  const svg = (tag, attributes, text) => make(tag, text, attributes, "http://www.w3.org/2000/svg");
  const found = points.filter((point) => point.every(Number.isFinite));
  if (found.length < 2) {
    byId("curve").replaceChildren(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Waiting for episodes …"));
    return;
  }
  const [first, last] = [found[0][0], found.at(-1)[0]];
  const returns = found.map(([, mean]) => mean);
  let [low, high] = [Math.min(...returns), Math.max(...returns)];
  const margin = 0.05 * (high - low || Math.abs(high) || 1);
  [low, high] = [low - margin, high + margin];
  const x = (steps) => left + ((width - left - right) * (steps - first)) / (last - first || 1);
  const y = (mean) => top + ((height - top - bottom) * (high - mean)) / (high - low);
  const parts = [];
  for (const tick of ticks(low, high)) {
    parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    parts.push(svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, compact.format(tick)));
  }
  for (const tick of ticks(first, last)) {
    parts.push(svg("text", { x: x(tick), y: height - 22, "text-anchor": "middle" }, compact.format(tick)));
  }
  parts.push(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "Steps"));
  parts.push(svg("polyline", { class: "line", points: found.map(([steps, mean]) => `${x(steps)},${y(mean)}`).join(" ") }));
  byId("curve").replaceChildren(...parts);
}

async function poll() {
  try {
    const answer = await fetch("status", { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    const status = await answer.json();
    byId("what").textContent = [status.agent, status.environment].filter(Boolean).join(" · ");
    showNumbers(status);
    showClients(status.clients ?? []);
    byId("learning").hidden = !status.curve;
    points = status.curve ?? [];
    showCurve();
    const waiting = Boolean(status.waiting);
    if (game.waiting !== waiting) await prepare(waiting);
    game.waiting = waiting;
    byId("state").textContent = waiting ? "waiting for the first client" : running(status.uptime);
    byId("state").className = "";
  } catch {
    byId("state").textContent = "no answer";
    byId("state").className = "off";
  }
  setTimeout(poll, 1000);
}

const game = { run: 0, best: 0, episodes: 0 };

/** Steps each second, as a multiple of the real time: 1 to 1,024, which is as fast as the connection allows. */
const times = () => 2 ** Number(byId("speed").value);

/** Play until `game.run` is another number: the button, the check box and a new token change it. */
async function play(run) {
  const exploit = byId("greedy").checked;
  const token = sessionStorage.getItem("token") ?? undefined;
  const url = new URL("connect", location.href.replace(/^http/, "ws"));
  url.search = url.hash = "";
  const agent = new RemoteAgent(url.href, { name: NAME, observation: game.spaces.observation, action: ACTION, exploit, token });
  say("connecting …");
  try {
    while (game.run === run) {
      const pole = new CartPole();
      let action = await agent.reset(pole.observation);
      let due = performance.now();
      while (action !== null && game.run === run) {
        const { reward, terminated, truncated } = pole.step(action);
        action = await agent.step(pole.observation, reward, { terminated, truncated });
        due = Math.max(due + (1000 * SECONDS) / times(), performance.now() - 100);
        pole.draw(byId("cart")); // the browser shows the newest picture only
        if (due > performance.now()) await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
      }
      if (action !== null) break;
      game.episodes += 1;
      game.best = Math.max(game.best, pole.steps);
      say(`episode ${count.format(game.episodes)}: ${pole.steps} steps, best ${game.best}`);
    }
  } catch (error) {
    if (game.run !== run) return;
    stop();
    say(error.message);
    byId("token").hidden = error.code !== "token";
  } finally {
    await agent.close();
  }
}

function say(text) {
  byId("score").textContent = text;
}

function stop() {
  game.run += 1;
  game.isOn = false;
  byId("play").textContent = "Play";
}

function start() {
  stop();
  Object.assign(game, { best: 0, episodes: 0, isOn: true });
  byId("play").textContent = "Stop";
  play(game.run);
}

/** Show the game if the server's spaces are its own, or if the server waits for the spaces of its first client. */
async function prepare(waiting) {
  const spaces = waiting ? { observation: OBSERVATION, action: ACTION } : await (await fetch("spaces")).json();
  game.spaces = spaces;
  byId("game").hidden = !isCartPole(spaces);
  byId("other").hidden = isCartPole(spaces);
  byId("what").hidden = waiting;
  const { observation, action } = spaces;
  const kind = (space) => [space?.type, space?.n ?? space?.nvec ?? space?.shape].filter((part) => part !== undefined).join(" ");
  byId("why").textContent =
    `The game of this page is CartPole. This server plays another environment, with observations of the kind ` +
    `${kind(observation)} and actions of the kind ${kind(action)}.`;
}

byId("play").onclick = () => (game.isOn ? (stop(), say("stopped")) : start());
byId("greedy").onchange = () => game.isOn && start();
byId("speed").oninput = () => (byId("times").textContent = `${count.format(times())}×`);
byId("token").querySelector("input").onchange = (event) => {
  sessionStorage.setItem("token", event.target.value);
  byId("token").hidden = true;
  start();
};
new ResizeObserver(showCurve).observe(byId("learning"));
new CartPole().draw(byId("cart"));
poll();
