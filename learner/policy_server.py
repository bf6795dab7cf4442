"""`--op_mode=serve`: a trained policy answers clients over the network, also while its run goes on training."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learner.evaluation.test_mode import load_policy, make_seeds
from learner.plan import Plan
from learner.policy_inputs import PolicyInputs, one_environment
from learner.runs.checkpoint import Checkpoint, load_checkpoint
from learner.runs.directory import RunDirectory, update_of
from learner.signals import StopSignals
from serve.app import ClientServer, Receive, Scope, Send, send_body, send_json
from serve.frames import ProtocolError, number, pack, shown, truth, unpack
from serve.run import listen, run, serve
from serve.session import NO_ACTION, Busy, Host, Outcome, Session
from serve.settings import ServerConfig
from serve.values import read_mask, wire_action
from workers.evaluation_policy import EvaluationPolicy
from workers.failures import failures_of
from workers.finite import NotFiniteError
from wrappers.gymnasium_spaces import FrameBuffer
from wrappers.served import PREFIX, spaces_of, translation_of

log = logging.getLogger("springbok")

MOST_SEATS = 4096  # of all clients, and names of single requests
MOST_WAITING = 1024  # observations that wait for an action; further single requests are refused
MOST_NAME = 64  # characters of a seat's name or an environment's id
LOOK_SECONDS = 1.0  # between two looks for newer weights
Reply = Callable[[Any, int], None]
"""Takes an action of the environment, and the version of the weights that chose it."""
Refuse = Callable[[ProtocolError], None]
"""Takes the error of an observation that the policy has no action for."""


@dataclass(frozen=True)
class Waiting:
    """An observation that waits for an action.

    stack: `[1, S, *frame_shape]`, and the one before it. first: whether the observation is its episode's first.
    """

    seat: int
    stack: np.ndarray
    before: np.ndarray
    first: bool
    reply: Reply
    refuse: Refuse


@dataclass
class Memory:
    """The state of a seat between its requests, without that of a recurrent core, which `EvaluationPolicy` keeps.

    task: index of its environment. stack: `[1, S, *frame_shape]`. action: the last, `[1, *shape]`; None before the first.
    """

    task: int
    stack: np.ndarray
    action: np.ndarray | None = None


class PolicyHost(Host):
    """Acts by the policy of a checkpoint for all seats. Nothing is learned, so every seat exploits."""

    def __init__(self, plan: Plan, policy: EvaluationPolicy, version: int) -> None:
        config = one_environment(plan.config.env)
        super().__init__(plan.config.agent, spaces_of(config))
        self.policy, self.version, self.steps = policy, version, 0
        self._translation = translation_of(config)
        self.inputs = PolicyInputs(plan.spec, self._translation.spec)
        self._buffer = FrameBuffer(self._translation.plan, 1)
        self._sessions: dict[int, Session] = {}
        self._memories: dict[int, Memory] = {}
        self._unused = 0
        self.waiting: list[Waiting] = []
        self.came = asyncio.Event()

    def task_of(self, task: str | None, field: str = "task") -> int:
        """The index of an environment by its id, which stands in this field of a message. Raises ProtocolError."""
        try:
            return self.inputs.index_of(task, field)
        except ValueError as error:
            raise ProtocolError("message", str(error)) from None

    def new_seat(self, task: int = 0) -> int:
        """Make a seat, and return its number. Raises Busy."""
        if len(self._memories) >= MOST_SEATS:
            raise Busy(1.0)
        self._unused += 1
        self._memories[self._unused] = Memory(task, self.inputs.empty())
        return self._unused

    def set_task(self, seat: int, task: int, *, first: bool) -> None:
        """Let a seat play another environment from its next episode on. first: whether that begins. Raises ProtocolError."""
        kept = self._memories[seat]
        if task != kept.task and not first:
            raise ProtocolError("message", "task: wanted the one of the seat's episode, got another one without first")
        kept.task = task

    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        task = self.task_of(session.name, "name") if self.inputs.reads_task else 0
        if len(self._memories) + count > MOST_SEATS:
            raise Busy(1.0)
        seats = [self.new_seat(task) for _ in range(count)]
        self._sessions.update(dict.fromkeys(seats, session))
        return seats

    def begin(self, seat: int, outcome: Outcome) -> None:
        self._ask_for_session(seat, outcome, first=True)

    def take(self, seat: int, outcome: Outcome) -> None:
        if not outcome.ended:
            self._ask_for_session(seat, outcome, first=False)

    def _ask_for_session(self, seat: int, outcome: Outcome, *, first: bool) -> None:
        session = self._sessions[seat]
        self.ask(
            seat,
            outcome,
            first=first,
            reply=lambda action, version: session.answer(seat, action, version),
            refuse=lambda error: session.refuse(error, seat),
        )

    def leave(self, seat: int) -> None:
        self._sessions.pop(seat, None)
        self._memories.pop(seat, None)
        self.policy.forget(seat)

    def ask(self, seat: int, outcome: Outcome, *, first: bool, reply: Reply, refuse: Refuse) -> None:
        """Let an observation wait for the next pass of the network."""
        name = self._translation.plan.mask_in_info
        info = {name: outcome.mask} if name and outcome.mask is not None else {}
        self._buffer.put(0, outcome.observation, info)
        kept = self._memories[seat]
        before, last = (self.inputs.empty(), None) if first else (kept.stack, kept.action)
        reward = 0.0 if first else outcome.reward
        kept.stack = self.inputs.push(before, self._buffer.frames(), action=last, reward=reward, task=kept.task)
        self.waiting.append(Waiting(seat, kept.stack, before, first, reply, refuse))
        self.came.set()

    def act(self) -> None:
        """Act on all observations that wait, in one pass of the network, or two if some are refused."""
        waiting, self.waiting = self.waiting, []
        while waiting:
            try:
                self._answer(waiting)
                return
            except NotFiniteError as error:
                wrong = error.wrong_rows.tolist()
            for each in (each for each, is_wrong in zip(waiting, wrong, strict=True) if is_wrong):
                if each.seat in self._memories:
                    self._memories[each.seat].stack = each.before
                each.refuse(ProtocolError("value", NO_ACTION))
            waiting = [each for each, is_wrong in zip(waiting, wrong, strict=True) if not is_wrong]

    def _answer(self, waiting: list[Waiting]) -> None:
        """Act on these observations. Raises NotFiniteError before any of them is answered."""
        stacks, first = np.concatenate([each.stack for each in waiting]), np.array([each.first for each in waiting])
        chosen = self.policy.choose(stacks, first, np.array([each.seat for each in waiting]))
        actions = self._translation.spec.action.check(chosen.actions.numpy(), len(waiting))
        self.steps += len(waiting)
        for index, (each, answer) in enumerate(zip(waiting, self._translation.decode(actions), strict=True)):
            if each.seat in self._memories:  # a client may have left
                self._memories[each.seat].action = actions[index : index + 1]
            each.reply(answer, self.version)


class ActRequests:
    """Answers `POST /act`. Requests that arrive together are one batch."""

    def __init__(self, host: PolicyHost, config: ServerConfig) -> None:
        self._host = host
        self._most_bytes = config.most_bytes
        self._timeout = config.client_timeout
        self._names: dict[str, tuple[int, float]] = {}  # name of a seat -> seat, and when it was used last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._host.waiting) >= MOST_WAITING:
            error = ProtocolError("busy", f"wanted fewer than {MOST_WAITING} requests at once, got more")
            await send_json(send, 503, {"error": error.to_message()}, ((b"retry-after", b"1"),))
            return
        binary = dict(scope["headers"]).get(b"content-type", b"").startswith(b"application/msgpack")
        try:
            body = await asyncio.wait_for(self._body(receive), self._timeout)
            answer = await self._act(unpack(body if binary else body.decode()))
        except (ProtocolError, UnicodeDecodeError) as error:
            reported = error if isinstance(error, ProtocolError) else ProtocolError("message", "body: wanted JSON in UTF-8")
            await send_json(send, 413 if reported.code == "size" else 400, {"error": reported.to_message()})
            return
        except TimeoutError:
            late = ProtocolError("timeout", f"wanted a whole body within {self._timeout:g} s, got a part")
            await send_json(send, 408, {"error": late.to_message()})
            return
        except Busy as busy:
            await send_json(send, 503, {"error": {"code": "busy", "message": str(busy)}}, ((b"retry-after", b"1"),))
            return
        packed = pack(answer, binary=binary)
        kind = "application/msgpack" if binary else "application/json"
        await send_body(send, 200, kind, packed if isinstance(packed, bytes) else packed.encode())

    async def _body(self, receive: Receive) -> bytes:
        parts, more, size = [], True, 0
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise ProtocolError("message", "wanted a whole body, got a part")
            parts.append(event.get("body", b""))
            size, more = size + len(parts[-1]), event.get("more_body", False)
            if size > self._most_bytes:
                raise ProtocolError("size", f"body: wanted at most {self._most_bytes} bytes, got more")
        return b"".join(parts)

    async def _act(self, message: Any) -> dict[str, Any]:
        if not isinstance(message, Mapping) or ("observation" in message) == ("observations" in message):
            raise ProtocolError("message", f"wanted an object with observation or observations, got {shown(message)}")
        if "observation" in message:
            action, version = await self._answer_to(message, message["observation"], message.get("mask"))
            return {"action": action, "version": version}
        many, masks = message["observations"], message.get("masks")
        if not isinstance(many, list) or not 0 < len(many) <= MOST_WAITING:
            raise ProtocolError("message", f"observations: wanted an array of 1 to {MOST_WAITING}, got {shown(many)}")
        if masks is None:
            masks = [None] * len(many)
        if "seat" in message:
            raise ProtocolError("message", "seat: wanted none with observations, which share no memory, got one")
        if not isinstance(masks, list) or len(masks) != len(many):
            raise ProtocolError("message", f"masks: wanted one for each of the {len(many)} observations, got {shown(masks)}")
        answers = [self._answer_to(message, each, mask) for each, mask in zip(many, masks, strict=True)]
        found = await asyncio.gather(*answers)
        return {"actions": [action for action, _ in found], "version": found[-1][1]}

    async def _answer_to(self, message: Mapping[str, Any], observation: Any, mask: Any) -> tuple[Any, int]:
        """The action for one observation, and the version of the weights. Raises ProtocolError or Busy."""
        host = self._host
        read = host.read_observation(observation, "observation")
        if host.spaces.has_mask and mask is None:
            raise ProtocolError("message", f"mask: wanted {host.mask_size} numbers, got none")
        reward = number(message, "reward") if "reward" in message else 0.0
        outcome = Outcome(read, {}, read_mask(mask, host.mask_size) if host.spaces.has_mask else None, reward)
        name = message.get("seat")
        if name is not None and (not isinstance(name, str) or not 0 < len(name) <= MOST_NAME):
            raise ProtocolError("message", f"seat: wanted a name of at most {MOST_NAME} characters, got {shown(name)}")
        task = message.get("task")
        if task is not None and (not isinstance(task, str) or len(task) > MOST_NAME):
            raise ProtocolError("message", f"task: wanted the id of an environment, got {shown(task)}")
        first = truth(message, "first", default=False)
        seat, is_new = self._seat_of(name, task, first=first)
        answered: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()

        def reply(action: Any, version: int) -> None:
            if not answered.done():
                answered.set_result((wire_action(action), version))

        def refuse(error: ProtocolError) -> None:
            if not answered.done():
                answered.set_exception(error)

        host.ask(seat, outcome, first=is_new or first, reply=reply, refuse=refuse)
        try:
            return await answered
        finally:
            if name is None:
                host.leave(seat)

    def _seat_of(self, name: str | None, task: str | None, *, first: bool) -> tuple[int, bool]:
        """The seat of a name, or a new one without a name; and whether nothing was kept of it. Raises ProtocolError or Busy.

        task: id of the environment that a new seat plays, or one whose episode is the first of another.
        """
        if name is not None and name in self._names:
            seat, is_new = self._names[name][0], False
            if task is not None:
                self._host.set_task(seat, self._host.task_of(task), first=first)
        else:
            seat, is_new = self._host.new_seat(self._host.task_of(task)), True
        if name is None:
            return seat, True
        self._names[name] = seat, asyncio.get_running_loop().time()
        return seat, is_new

    def forget_unused(self) -> None:
        """Forget what was kept of names that were not used for a while."""
        now = asyncio.get_running_loop().time()
        for name in [name for name, (_, used) in self._names.items() if now - used > self._timeout]:
            self._host.leave(self._names.pop(name)[0])


def serve_policy(plan: Plan, checkpoint: Checkpoint, path: Path, directory: RunDirectory | None) -> int:
    """Serve until a signal asks to stop. Returns the exit code.

    path: the file of the checkpoint. directory: of its run, whose newer checkpoints are taken up.
    """
    config = plan.config.server
    listening = listen(config)

    async def work() -> None:
        seed = make_seeds(plan.config.training.seed).actions
        host = PolicyHost(plan, load_policy(plan, checkpoint, seed), checkpoint.counters.updates)
        requests = ActRequests(host, config)
        environment = plan.config.env.env.removeprefix(PREFIX)

        def status() -> dict[str, Any]:
            return {"environment": environment, "steps": host.steps, "version": host.version}

        server = ClientServer(host, config, status, requests)
        await serve(server, listening, _work(signals, _act(host), _look(plan, host, requests, path, directory)))

    with StopSignals(at_once=lambda: None, first="Stopping.") as signals:
        log.info("Serving update %s at %s", f"{checkpoint.counters.updates:,}", config.url)
        run(work(), fast=True)
    return 0


async def _work(signals: StopSignals, *endless: Coroutine[Any, Any, None]) -> None:
    """Run endless work until a signal asks to stop. Raises WorkerError if a part of the work fails."""
    tasks = [asyncio.ensure_future(each) for each in endless]
    try:
        while not signals.requested:
            done, _ = await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            with failures_of("the served policy"):
                for task in done:
                    task.result()
    finally:
        for task in tasks:
            task.cancel()


async def _act(host: PolicyHost) -> None:
    """Answer for ever. The requests that arrived in one turn of the event loop are one batch."""
    while True:
        await host.came.wait()
        host.came.clear()
        host.act()


async def _look(plan: Plan, host: PolicyHost, requests: ActRequests, path: Path, directory: RunDirectory | None) -> None:
    """Take up newer checkpoints of the run, for ever."""
    newest = update_of(path) if directory and path in directory.checkpoint_paths() else None
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        requests.forget_unused()
        if newest is None or directory is None:
            continue
        found = directory.checkpoint_paths()[-1:]
        if not found or update_of(found[0]) == newest:
            continue
        with suppress(ValueError):  # one that is damaged, or was removed meanwhile
            loaded = await asyncio.to_thread(load_checkpoint, found[0])
            host.policy.take_weights(load_policy(plan, loaded, 1))
            host.version = newest = update_of(found[0])
            log.info("Serving update %s", f"{newest:,}")
