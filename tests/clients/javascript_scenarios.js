// Plays against a server as tests/clients/test_javascript.py asks: node javascript_scenarios.js SCENARIO URL. Prints JSON.
import { RemoteAgent } from "../../clients/javascript/springbok.js";

const [, , scenario, url, token] = process.argv;
const observation = { type: "box", shape: [2], dtype: "float32", low: null, high: null };
const make = (options = {}) =>
  new RemoteAgent(url, { name: "Toy-v0", observation, action: { type: "discrete", n: 3 }, token, ...options });

async function play(agent, length, seat = 0) {
  let action = await agent.reset(new Float32Array([0.5, -1]), { seat });
  let actions = 0;
  while (action !== null) {
    if (![0, 1, 2].includes(action)) throw new Error(`wanted 0, 1 or 2, got ${action}`);
    actions += 1;
    action = await agent.step([0.5, -1], 1, { terminated: actions === length, seat, info: { level: 3 } });
  }
  return actions;
}

async function failureOf(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.name, code: error.code, message: error.message };
  }
}

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

const scenarios = {
  async episodes(agent) {
    const played = [];
    for (let episode = 0; episode < 3; episode++) played.push(await play(agent, 4));
    agent.metric("level", [1, 2]);
    return { played, givenUp: agent.givenUp, agent: agent.agent };
  },
  async seats() {
    const agent = make({ seats: 3 });
    const played = await Promise.all([0, 1, 2].map((seat) => play(agent, 3 + seat, seat)));
    await agent.close();
    return { played, givenUp: agent.givenUp };
  },
  async large(agent) {
    await agent.reset(Array.from({ length: 20000 }, () => 0.123));
    const action = await agent.step(Array.from({ length: 70 }, () => 0.5), 1);
    return { action: action.length };
  },
  async failure(agent) {
    return await failureOf(() => play(agent, 5));
  },
  async slow(agent) {
    await agent.reset([0, 0]);
    agent.metric("level", 1); // the server answers that the run is over
    while (!agent.givenUp) await sleep(0.01);
    return await failureOf(() => agent.step([0, 0], 1));
  },
  async last(agent) {
    await agent.reset([0, 0]);
    await agent.step([0, 0], 1, { terminated: true }); // the server refuses this observation
    while (agent._socket) await sleep(0.01);
    const failure = await failureOf(() => agent.reset([0, 0]));
    return { failure, played: await play(agent, 2) };
  },
  async oversize() {
    const agent = make({ patience: 0.1 });
    return await failureOf(() => agent.reset(new Float32Array(1000)));
  },
  async unwritable() { // one seat's value cannot be written, and the other seat plays on
    const agent = make({ seats: 2 });
    await Promise.all([0, 1].map((seat) => agent.reset([0, 0], { seat })));
    const failing = failureOf(() => agent.step([0n, 0], 1));
    const action = await agent.step([0, 0], 1, { seat: 1 });
    const failures = [(await failing).name, (await failureOf(() => agent.step([0n, 0], 1, { terminated: true }))).name];
    const next = await agent.step([0, 0], 1);
    await agent.close();
    const other = make({ observation: 0n });
    return { failures, actions: [typeof action, typeof next], hello: (await failureOf(() => other.reset([0, 0]))).name };
  },
  async unreachable() {
    const agent = make({ patience: 0.1 });
    return await scenarios.failure(agent);
  },
  async wrong(agent) {
    const lines = [];
    for (const call of [() => agent.step([0, 0], 1), () => agent.reset([0, 0], { seat: 1 }), () => new RemoteAgent("host:1", {})]) {
      try {
        await call();
      } catch (error) {
        lines.push(error.message);
      }
    }
    return { lines };
  },
};

const agent = make();
const result = await scenarios[scenario](agent);
await agent.close();
console.log(JSON.stringify(result));
