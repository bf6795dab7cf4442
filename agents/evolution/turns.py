"""Which member of a population each environment plays next.

Environment e of E brings the members e, e + E, e + 2 E, ... to the policy that acts for it. The policy's environments play all
that they bring, one episode each in the order in which they are free. Which episodes count is thus decided before they are
played. If instead the first ones to end were counted, short episodes would be preferred. Until the generation ends everywhere
the environments play the centre, and again members whose episode may have been lost.
"""

from __future__ import annotations

from collections.abc import Sequence

CENTRE = 0
"""The number of the unperturbed policy; members have numbers from 1 on."""


class Turns:
    """The turns of the environments of one policy.

    Args:
        numbers: of these environments in the run, ascending.
        total: environments of the run.
        population: members of a generation.

    Attributes:
        rows: number of an environment -> its index in the lists below.
        generation: of the two lists; an episode of an older generation counts nothing.
        members: the member that plays in each environment, `CENTRE` for the centre and for an older episode.
        begun: how many episodes each environment has begun.
    """

    def __init__(self, numbers: Sequence[int], total: int, population: int) -> None:
        self.rows = {number: row for row, number in enumerate(numbers)}
        self._brought = [
            1 + member
            # In rounds of `total` members, so that every environment brings one before any brings its second.
            for first in range(0, population, total)
            for member in (first + number for number in numbers)
            if member < population
        ]
        self.enter(0)

    def enter(self, generation: int) -> None:
        """Forget the turns of another generation."""
        self.generation = generation
        self.members = [CENTRE] * len(self.rows)
        self.begun = [0] * len(self.rows)

    def begin(self, row: int) -> int:
        """An environment begins its next episode. Returns who plays it."""
        self.members[row] = self._next(sum(self.begun))  # the place counts the episodes of all these environments
        self.begun[row] += 1
        return self.members[row]

    def _next(self, place: int) -> int:
        """Who plays the episode that these environments begin as the `place`-th of the generation, counted from 0."""
        further = place - len(self._brought)
        if further < 0:
            return self._brought[place]
        # Behind all own members every second episode is the centre's, and the others repeat members in their order.
        if further % 2 == 0 or not self._brought:
            return CENTRE
        repeated = self._brought[further // 2 % len(self._brought)]
        # Not a member that plays now: of two episodes the shorter one would count.
        return CENTRE if repeated in self.members else repeated
