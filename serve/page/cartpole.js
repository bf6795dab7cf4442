/** CartPole with the equations of Gymnasium's CartPole-v1: https://gymnasium.farama.org/environments/classic_control/cart_pole/ */

const GRAVITY = 9.8;
const MASS_OF_POLE = 0.1;
const MASS = 1 + MASS_OF_POLE; // with that of the cart
const LENGTH = 0.5; // half of the pole's
const FORCE = 10;
const SECONDS = 0.02; // between two steps
const MOST_PLACE = 2.4;
const MOST_ANGLE = (12 * 2 * Math.PI) / 360;
const MOST_STEPS = 500;

export const NAME = "CartPole-v1";
const PLACES = [2 * MOST_PLACE, null, 2 * MOST_ANGLE, null].map((bound) => bound && Math.fround(bound));
const low = PLACES.map((bound) => bound && -bound);
export const OBSERVATION = { type: "box", shape: [4], dtype: "float32", low, high: PLACES };
export const ACTION = { type: "discrete", n: 2, start: 0 };
export { SECONDS };

/** Whether the spaces of a server are those of this game, whatever their bounds. */
export function isCartPole({ observation, action, mask } = {}) {
  const isBox = observation?.type === "box" && observation.dtype === "float32" && String(observation.shape) === "4";
  return Boolean(isBox && action?.type === "discrete" && action.n === 2 && !action.start && !mask);
}

/** One episode. `observation`: place, speed, angle and angular speed. */
export class CartPole {
  constructor() {
    this.observation = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);
    this.steps = 0;
  }

  /** Push the cart to the left (0) or right (1). Returns reward, terminated and truncated. */
  step(action) {
    let [place, speed, angle, turning] = this.observation;
    const sine = Math.sin(angle);
    const cosine = Math.cos(angle);
    const force = action === 1 ? FORCE : -FORCE;
    const common = (force + MASS_OF_POLE * LENGTH * turning * turning * sine) / MASS;
    const turn = (GRAVITY * sine - cosine * common) / (LENGTH * (4 / 3 - (MASS_OF_POLE * cosine * cosine) / MASS));
    const push = common - (MASS_OF_POLE * LENGTH * turn * cosine) / MASS;
    place += SECONDS * speed;
    speed += SECONDS * push;
    angle += SECONDS * turning;
    turning += SECONDS * turn;
    this.observation = [place, speed, angle, turning];
    this.steps += 1;
    const terminated = Math.abs(place) > MOST_PLACE || Math.abs(angle) > MOST_ANGLE;
    return { reward: 1, terminated, truncated: !terminated && this.steps >= MOST_STEPS };
  }

  /** Draw the cart, in the colours of the page. */
  draw(canvas) {
    const pen = canvas.getContext("2d");
    const { width, height } = canvas;
    const colour = (name) => getComputedStyle(canvas).getPropertyValue(name);
    const [place, , angle] = this.observation;
    const scale = width / (2 * MOST_PLACE);
    const [x, y] = [width / 2 + place * scale, 0.75 * height];
    pen.clearRect(0, 0, width, height);
    pen.lineCap = "round";
    line(pen, colour("--line"), 2, 0, y + 17, width, y + 17);
    pen.fillStyle = colour("--ink");
    pen.fillRect(x - 36, y - 15, 72, 30);
    const long = 2 * LENGTH * scale;
    line(pen, colour("--mark"), 10, x, y - 12, x + long * Math.sin(angle), y - 12 - long * Math.cos(angle));
  }
}

function line(pen, colour, width, ...[fromX, fromY, toX, toY]) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}
