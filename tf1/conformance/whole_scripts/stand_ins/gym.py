"""Two environments of Gym's in NumPy, for public scripts that learn to act: a pole on a cart, and a pendulum."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class _Environment:
    """What both share: scripts seed them, and look at nothing that they draw."""

    def __init__(self):
        self._random, self.unwrapped = np.random.RandomState(0), self

    def seed(self, seed=None):
        """Seeds the random numbers again."""
        self._random = np.random.RandomState(seed)

    def render(self):
        """Draws nothing."""


class _CartPole(_Environment):
    """A pole on a cart that is pushed to the left or to the right: 0.02 s a step, until either is too far off."""

    x_threshold, theta_threshold_radians = 2.4, 12 * 2 * np.pi / 360

    def __init__(self):
        super().__init__()
        high = np.array([4.8, np.inf, 2 * self.theta_threshold_radians, np.inf])
        self.action_space = SimpleNamespace(n=2, sample=lambda: self._random.randint(2))
        self.observation_space = SimpleNamespace(shape=(4,), high=high, low=-high)

    def reset(self):
        """Returns a state close to the middle."""
        self._state = self._random.uniform(-0.05, 0.05, 4)
        return self._state.copy()

    def step(self, action):
        """Returns the next state, the reward, and whether the pole has fallen."""
        _, speed, angle, turn = self._state
        push, heavy, half = (10.0 if action == 1 else -10.0), 0.1, 0.5
        along = (push + heavy * half * turn**2 * np.sin(angle)) / 1.1
        faster = 9.8 * np.sin(angle) - np.cos(angle) * along
        bent = faster / (half * (4 / 3 - heavy * np.cos(angle) ** 2 / 1.1))
        moved = along - heavy * half * bent * np.cos(angle) / 1.1
        self._state = self._state + 0.02 * np.array([speed, moved, turn, bent])
        done = abs(self._state[0]) > self.x_threshold or abs(self._state[2]) > self.theta_threshold_radians
        return self._state.copy(), 1.0, bool(done), {}


class _Pendulum(_Environment):
    """A pendulum that is turned by a small force, which is to stand upright: 0.05 s a step."""

    def __init__(self):
        super().__init__()
        bound, high = np.array([2.0], "float32"), np.array([1.0, 1.0, 8.0], "float32")
        self.action_space = SimpleNamespace(shape=(1,), high=bound, low=-bound)
        self.observation_space = SimpleNamespace(shape=(3,), high=high, low=-high)

    def reset(self):
        """Returns a state anywhere."""
        self._angle, self._turn = self._random.uniform([-np.pi, -1.0], [np.pi, 1.0])
        return self._seen()

    def step(self, action):
        """Returns the next state and the reward; it never ends."""
        force = float(np.clip(np.ravel(action)[0], -2, 2))
        off = (self._angle + np.pi) % (2 * np.pi) - np.pi
        cost = off**2 + 0.1 * self._turn**2 + 0.001 * force**2
        turn = self._turn + 0.05 * (15 * np.sin(self._angle) + 3 * force)
        self._turn = float(np.clip(turn, -8, 8))
        self._angle += 0.05 * self._turn
        return self._seen(), -cost, False, {}

    def _seen(self):
        return np.array([np.cos(self._angle), np.sin(self._angle), self._turn])


def make(name):
    """Returns an environment by its name in Gym."""
    return {"CartPole-v0": _CartPole, "Pendulum-v0": _Pendulum}[name]()
