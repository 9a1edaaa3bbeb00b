"""Tasks that act again and again, each by dice of its own, until they are told to rest or to end."""

import asyncio
import random


class Workers:
    """`number` tasks that do `act`; `pace` is how long each waits between two acts, on average."""

    def __init__(self, seed, number, act, pace=0.0):
        self.pace = pace
        self._seed = seed
        self._number = number
        self._act = act
        self._awake = asyncio.Event()
        self._ending = False
        self._busy = 0
        self._tasks = []

    def start(self):
        """Begin."""
        self._awake.set()
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self._number)]

    async def rest(self):
        """Have everybody finish what they are at, and then do nothing until `go_on`."""
        self._awake.clear()
        while self._busy:
            self.check()
            await asyncio.sleep(0.01)

    def go_on(self):
        """Let everybody act again."""
        self._awake.set()

    async def end(self):
        """Have everybody finish what they are at, and wait for it."""
        self._ending = True
        self._awake.set()
        await asyncio.gather(*self._tasks)

    def check(self):
        """Raise what one of them failed of, while there is still something to see."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _work(self, number):
        dice = random.Random(f"{self._seed} {number}")
        while not self._ending:
            await self._awake.wait()
            self._busy += 1
            try:
                await self._act(dice)
            finally:
                self._busy -= 1
            if self.pace:
                await asyncio.sleep(dice.expovariate(1 / self.pace))
