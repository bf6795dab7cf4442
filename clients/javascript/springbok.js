/**
 * Plays an environment with the agent of a Springbok server, over a WebSocket. See docs/clients.md and docs/protocol.md.
 *
 * One file without dependencies, for browsers and for Node 18 and later:
 *
 *     import { RemoteAgent, ServerError } from "./springbok.js";
 *
 * `<script type="module" src="springbok.js"></script>` makes the global object `springbok` with both.
 */

const PROTOCOL = 1;
const FIRST_PAUSE = 0.25; // seconds between two tries to connect; each pause is twice the one before
const LONGEST_PAUSE = 30;
const CLOSE_SECONDS = 1; // for the server to end the connection
const TOO_LARGE = 1009; // the code with which a WebSocket ends after a frame over the limit
const PASSING = new Set(["closing", "timeout"]); // codes of errors after which another connection is worth a try
const LOST = Symbol("lost"); // the answer to a message whose connection broke

/** The server refused what the client sent. `code` is one of docs/protocol.md. */
export class ServerError extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.name = "ServerError";
    this.code = code;
  }
}

/** No connection could be made; another try may succeed. `seconds`: when the server wants it, if it said so. */
class Unreachable extends Error {
  constructor(message, seconds) {
    super(message);
    this.seconds = seconds;
  }
}

/**
 * An agent on a server. Environments of this program play with its actions, and it learns from them.
 *
 * If the connection breaks, running episodes are given up: `step` resolves to null, as it does at the end of an episode. The next
 * `reset` connects again.
 */
export class RemoteAgent {
  /**
   * @param {string} url of the server, `ws://HOST:PORT` or `wss://HOST:PORT`
   * @param {object} options
   *   name: of the environment, at most 64 characters.
   *   observation, action: spaces in the form of docs/protocol.md.
   *   mask: whether every reset and step has a mask of legal actions (false).
   *   seats: environments that play at once over this connection (1).
   *   exploit: whether actions are the best ones, and nothing is learned (false).
   *   token: of the server, if it wants one.
   *   patience: seconds for which a server that cannot be reached is tried again (60).
   *   WebSocket: class to use in place of the global one.
   */
  constructor(url, { name, observation, action, mask = false, seats = 1, exploit = false, token, patience = 60, WebSocket }) {
    this.url = urlOf(url);
    this.hello = { type: "hello", protocol: PROTOCOL, name, spaces: { observation, action, mask }, seats, exploit };
    if (token) this.hello.token = token;
    this.patience = patience;
    /** Name of the server's agent, once connected. */
    this.agent = "";
    /** Episodes that ended because a connection broke. */
    this.givenUp = 0;
    /** Number of updates of the weights that chose the newest action. */
    this.version = 0;
    this._class = WebSocket;
    this._forget();
    this._pause = 0;
    this._socket = null;
    this._connecting = null;
    this._rotates = false;
    this._outbox = [];
  }

  /** Connect, if there is no connection. Rejects with ServerError, or with Error once the patience has ended. */
  async connect() {
    if (this._socket && this._rotates && !this._playing.size && !this._waiting.size) await this._leave();
    if (this._socket) return;
    this._connecting ??= this._connect().finally(() => (this._connecting = null));
    await this._connecting;
  }

  /** Begin an episode. Resolves to its first action, once there is a connection. */
  async reset(observation, { seat = 0, mask } = {}) {
    this._check(seat);
    if (this._waiting.has(seat)) throw new Error(`seat ${seat}: wanted the action before reset, got none`);
    for (;;) {
      this._checkRefusal(seat);
      await this.connect();
      this._lost.delete(seat);
      this._playing.delete(seat); // until its first action: a reset without an answer is sent again
      const action = await this._ask(seat, { type: "reset", seat, observation, mask });
      if (action !== LOST) return action;
    }
  }

  /**
   * Report the result of the last action. Resolves to the next action, or to null if the episode has ended or is given up.
   * `info`: its numbers and truth values go into the server's metrics.
   */
  async step(observation, reward, { terminated = false, truncated = false, seat = 0, mask, info } = {}) {
    this._check(seat);
    this._checkRefusal(seat);
    if (this._lost.delete(seat)) return null;
    if (!this._playing.has(seat) || this._waiting.has(seat)) throw new Error(`seat ${seat}: wanted reset before step, got none`);
    const message = { type: "step", seat, observation, reward, terminated, truncated, mask, info };
    if (terminated || truncated) {
      this._post(message);
      this._playing.delete(seat);
      return null;
    }
    const action = await this._ask(seat, message);
    return action === LOST ? null : action;
  }

  /** Report a number, or an array of numbers, for the server's metrics. It is dropped while there is no connection. */
  metric(name, value, { seat = 0 } = {}) {
    this._post({ type: "metric", name, value, seat });
  }

  /** Leave the server; episodes that run are cut. */
  async close() {
    const waiting = [...this._waiting.values()];
    this._forget();
    for (const { resolve } of waiting) resolve(LOST);
    await this._leave();
  }

  _check(seat) {
    if (!(seat >= 0 && seat < this.hello.seats)) throw new Error(`seat: wanted 0 to ${this.hello.seats - 1}, got ${seat}`);
  }

  /** Throw a refusal that came while no call waited for an action. */
  _checkRefusal(seat) {
    const error = this._refusal;
    this._refusal = null;
    if (!error) return;
    this._lost.delete(seat);
    throw error;
  }

  _forget() {
    this._playing = new Set(); // seats whose episodes run
    this._waiting = new Map(); // seat -> the promise of its action
    this._lost = new Set(); // seats whose episodes are given up, which the caller does not know yet
    this._refusal = null; // a ServerError that the caller does not know yet
  }

  _ask(seat, message) {
    return new Promise((resolve, reject) => {
      if (this._post(message)) this._waiting.set(seat, { resolve, reject });
      else resolve(LOST);
    });
  }

  /**
   * Send a message. Those of one turn of the event loop go in one frame. Returns false if there is no connection. Throws
   * TypeError for a value that JSON lacks; then nothing of the message is sent.
   */
  _post(message) {
    const text = textOf(message);
    if (!this._socket) return false;
    if (!this._outbox.length) queueMicrotask(() => this._flush());
    this._outbox.push(text);
    return true;
  }

  _flush() {
    const texts = this._outbox;
    this._outbox = [];
    if (this._socket && texts.length) this._socket.send(texts.length === 1 ? texts[0] : `[${texts.join(",")}]`);
  }

  async _connect() {
    let until = now() + this.patience;
    let seconds = this._pause * between(0.5, 1);
    for (;;) {
      await sleep(seconds);
      try {
        await this._open();
        return;
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        if (error.seconds !== undefined) {
          seconds = error.seconds * between(1, 1.25);
          until = now() + this.patience;
        } else {
          if (now() >= until) throw new Error(`${this.url}: ${error.message}`);
          this._lengthenPause();
          seconds = Math.min(this._pause * between(0.5, 1), Math.max(0, until - now()));
        }
      }
    }
  }

  async _open() {
    const Socket = this._class ?? globalThis.WebSocket ?? (await nodeSocket());
    const hello = textOf(this.hello);
    const socket = new Socket(this.url);
    await new Promise((resolve, reject) => {
      const fail = (error) => {
        socket.onmessage = socket.onclose = null;
        socket.close();
        reject(error);
      };
      socket.onopen = () => socket.send(hello);
      socket.onerror = () => {}; // the event close follows
      socket.onclose = ({ code }) => fail(refusalOf(code) ?? new Unreachable("wanted a server of clients, got no connection"));
      socket.onmessage = (event) => {
        const [first, ...further] = messagesOf(event.data);
        if (first.type !== "welcome") return fail(refusal(first));
        this.agent = first.agent;
        this._socket = socket;
        this._rotates = false;
        socket.onclose = ({ code }) => this._break(socket, refusalOf(code));
        socket.onmessage = (next) => this._take(socket, messagesOf(next.data));
        this._take(socket, further);
        resolve();
      };
    });
  }

  _take(socket, messages) {
    for (const message of messages) {
      if (message.type === "action") {
        const waiting = this._waiting.get(message.seat);
        this._waiting.delete(message.seat);
        this._playing.add(message.seat);
        this._pause = 0;
        this.version = message.version;
        waiting?.resolve(message.action);
      } else if (message.type === "rotate") {
        this._rotates = true;
      } else if (message.type === "error" || message.type === "busy") {
        this._break(socket, refusal(message));
      }
    }
  }

  /** Drop the connection. A refusal rejects the calls that wait, or the next one; otherwise they learn that it broke. */
  _break(socket, error) {
    if (this._socket !== socket) return;
    this._socket = null;
    this._outbox = [];
    socket.onclose = socket.onmessage = null;
    socket.close();
    this._lengthenPause();
    const { _waiting: waiting, _playing: playing } = this;
    this._waiting = new Map();
    this._playing = new Set();
    this.givenUp += playing.size;
    for (const seat of playing) if (!waiting.has(seat)) this._lost.add(seat);
    const refused = error instanceof ServerError ? error : null;
    if (!waiting.size) this._refusal = refused;
    for (const { resolve, reject } of waiting.values()) refused ? reject(refused) : resolve(LOST);
  }

  _lengthenPause() {
    this._pause = Math.min(Math.max(FIRST_PAUSE, 2 * this._pause), LONGEST_PAUSE);
  }

  /** Send the last messages, after which the server ends the connection. A server that is silent is not waited for. */
  async _leave() {
    const socket = this._socket;
    if (!socket) return;
    this._outbox.push(textOf({ type: "close" }));
    this._flush();
    this._socket = null;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, 1000 * CLOSE_SECONDS);
      socket.onmessage = null;
      socket.onclose = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    socket.onclose = null;
    socket.close();
  }
}

function urlOf(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    url = { protocol: "" };
  }
  if (!["ws:", "wss:"].includes(url.protocol)) throw new Error(`url: wanted ws://HOST:PORT or wss://HOST:PORT, got ${text}`);
  if (url.pathname === "/") url.pathname = "/connect";
  return url.href;
}

function refusal(message) {
  if (message.type === "busy") return new Unreachable("the server has no room", message.retry_after);
  if (message.type !== "error") return new ServerError("protocol", `wanted welcome, got ${message.type}`);
  const error = new ServerError(message.code, message.message);
  return PASSING.has(message.code) ? new Unreachable(error.message) : error;
}

/** The refusal that the code of a closed WebSocket stands for, null if it is none. */
function refusalOf(code) {
  if (code !== TOO_LARGE) return null;
  return new ServerError("size", "wanted a frame within the server's --client_megabytes, got a larger one");
}

function textOf(message) {
  return JSON.stringify(message, (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value));
}

function messagesOf(frame) {
  const content = JSON.parse(frame);
  return Array.isArray(content) ? content : [content];
}

const now = () => performance.now() / 1000;
const between = (low, high) => low + (high - low) * Math.random();
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** A WebSocket for Node before version 22, which has no global one: text frames, pings, and no extensions. */
async function nodeSocket() {
  const [http, https, crypto] = await Promise.all([import("node:http"), import("node:https"), import("node:crypto")]);

  return class NodeSocket {
    constructor(url) {
      this._stream = null;
      this._bytes = Buffer.alloc(0);
      this._parts = [];
      this._isClosed = false;
      this._code = 1006; // no frame said why the connection ended
      const key = crypto.randomBytes(16).toString("base64");
      const headers = { Connection: "Upgrade", Upgrade: "websocket", "Sec-WebSocket-Version": 13, "Sec-WebSocket-Key": key };
      const secure = url.startsWith("wss:");
      const request = (secure ? https : http).request(url.replace(/^ws/, "http"), { headers });
      request.on("upgrade", (_, stream, head) => {
        if (this._isClosed) return stream.destroy();
        this._stream = stream;
        stream.setNoDelay(true);
        stream.on("data", (data) => this._read(data));
        stream.on("error", () => {});
        stream.on("close", () => this._end());
        this.onopen?.();
        this._read(head);
      });
      request.on("response", (response) => {
        response.destroy(); // the server speaks no WebSocket
        this._end();
      });
      request.on("error", () => this._end());
      request.end();
    }

    send(text) {
      this._write(1, Buffer.from(text));
    }

    close() {
      this._isClosed = true;
      this._write(8, Buffer.from([3, 232])); // 1000, a normal end
      this._stream?.end();
    }

    _end() {
      this._isClosed = true;
      const ended = this.onclose;
      this.onclose = null;
      ended?.({ code: this._code });
    }

    _write(opcode, data) {
      if (!this._stream || this._stream.destroyed || this._stream.writableEnded) return;
      const size = data.length;
      const head = size < 126 ? Buffer.alloc(2) : size < 65536 ? Buffer.alloc(4) : Buffer.alloc(10);
      head[0] = 0x80 | opcode;
      head[1] = 0x80 | (size < 126 ? size : size < 65536 ? 126 : 127);
      if (head.length === 4) head.writeUInt16BE(size, 2);
      if (head.length === 10) head.writeBigUInt64BE(BigInt(size), 2);
      const mask = crypto.randomBytes(4);
      const masked = Buffer.from(data);
      for (let index = 0; index < size; index++) masked[index] ^= mask[index & 3];
      this._stream.write(Buffer.concat([head, mask, masked]));
    }

    _read(data) {
      this._bytes = Buffer.concat([this._bytes, data]);
      for (;;) {
        const bytes = this._bytes;
        if (bytes.length < 2) return;
        const short = bytes[1] & 0x7f;
        const start = short < 126 ? 2 : short === 126 ? 4 : 10;
        if (bytes.length < start) return;
        const size = short < 126 ? short : short === 126 ? bytes.readUInt16BE(2) : Number(bytes.readBigUInt64BE(2));
        if (bytes.length < start + size) return;
        this._bytes = bytes.subarray(start + size);
        this._frame(bytes[0] & 0x0f, (bytes[0] & 0x80) !== 0, bytes.subarray(start, start + size));
      }
    }

    _frame(opcode, isLast, data) {
      if (opcode === 8) {
        if (data.length > 1) this._code = data.readUInt16BE(0);
        this.close();
      } else if (opcode === 9) this._write(10, data);
      else if (opcode < 3) {
        this._parts.push(data);
        if (!isLast) return;
        const text = Buffer.concat(this._parts).toString();
        this._parts = [];
        this.onmessage?.({ data: text });
      }
    }
  };
}

globalThis.springbok = { RemoteAgent, ServerError };
