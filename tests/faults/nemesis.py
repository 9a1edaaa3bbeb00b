"""What is done to a service while its clients go on: kill -9 and SIGSTOP, of replicas and of the store."""

import asyncio
import random

from .replicas import NotStarted

RESTART_SECONDS = 30
WORK = (4, 24)
"""Between two faults so many operations are acknowledged, lest the harm of one hide behind the next."""
STUCK_SECONDS = 60


class Nemesis:
    """Breaks the replicas and the store of one service; what it breaks it makes whole again."""

    def __init__(self, replicas, store, seed):
        self.dice = random.Random(f"{seed} nemesis")
        self._replicas = replicas
        self._store = store
        self._healing = []

    async def kill(self, clients, *, of_replicas, of_store):
        """Kill in random order."""
        victims = ["replica"] * of_replicas + ["store"] * of_store
        self.dice.shuffle(victims)
        for victim in victims:
            await self.some_work(clients)
            if victim == "store":
                await self.kill_store()
            else:
                await self.kill_replica()
        await self.heal()

    async def pause(self, clients, *, pauses, longest_seconds):
        """Stop replicas for a while, one at a time, while others serve their sessions."""
        for _ in range(pauses):
            await self.some_work(clients)
            zombie = self.dice.choice(self._replicas.serving)
            zombie.pause()
            await asyncio.sleep(self.dice.uniform(0.05, longest_seconds))
            zombie.resume()

    async def some_work(self, clients, work=WORK):
        """Wait until clients were told of some more operations, and a moment: any may be under way."""
        history, loop = clients.history, asyncio.get_running_loop()
        goal = history.acknowledged + self.dice.randint(*work)
        before, since = history.acknowledged, loop.time()
        while history.acknowledged < goal:
            clients.workers.check()
            self._check_healing()
            if history.acknowledged > before:
                before, since = history.acknowledged, loop.time()
            assert loop.time() < since + STUCK_SECONDS, "nothing was acknowledged for a minute"
            await asyncio.sleep(0.005)
        await asyncio.sleep(self.dice.uniform(0.0, 0.02))

    async def kill_replica(self):
        """Kill a replica that serves, unless it is the last; another takes its seat."""
        while len(self._replicas.serving) < 2:
            self._check_healing()
            await asyncio.sleep(0.01)
        seat = self.dice.choice([n for n, one in enumerate(self._replicas.seats) if one is not None])
        self._replicas.kill(seat)
        self._healing.append(asyncio.create_task(self._restart(seat)))

    async def kill_store(self):
        """Kill the store, leave it dead for a moment, and start it on what it wrote."""
        self._store.kill()
        await asyncio.sleep(self.dice.uniform(0.0, 0.3))
        await asyncio.to_thread(self._store.start)

    async def heal(self):
        """Wait until all that was broken is whole."""
        await asyncio.gather(*self._healing)

    async def _restart(self, seat):
        """Start a replica as a supervisor does: one that finds the store dead ends, and is started again."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                await self._replicas.start(seat)
            except NotStarted:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            else:
                return

    def _check_healing(self):
        for task in self._healing:
            if task.done():
                task.result()
