"""What is done to a service while its clients go on: kill -9 and SIGSTOP, of replicas and of the store."""

import asyncio
import random

from tests.faults.replicas import NotStarted

RESTART_SECONDS = 20


class Nemesis:
    """Breaks the replicas and the store of one service; what it breaks it makes whole again."""

    def __init__(self, replicas, store, seed, *, pause_seconds=0.5):
        self._replicas = replicas
        self._store = store
        self._dice = random.Random(f"{seed} nemesis")
        self._pause_seconds = pause_seconds
        self._healing = []

    async def kill(self, clients, *, of_replicas, of_store):
        """Kill in random order, each as soon as the one before has done some harm."""
        victims = ["replica"] * of_replicas + ["store"] * of_store
        self._dice.shuffle(victims)
        for victim in victims:
            await asyncio.sleep(self._dice.uniform(0.02, self._pause_seconds))
            self._check(clients)
            if victim == "store":
                await self.kill_store()
            else:
                await self.kill_replica()
        await self.heal()

    async def kill_replica(self):
        """Kill a replica that serves; another takes its seat, while at least one goes on serving."""
        while len(self._replicas.serving) < 2:
            self._check_healing()
            await asyncio.sleep(0.01)
        seat = self._dice.choice([n for n, one in enumerate(self._replicas.seats) if one is not None])
        self._replicas.kill(seat)
        self._heal(self._restart(seat))

    async def kill_store(self):
        """Kill the store, leave it dead for a moment, and start it on what it wrote."""
        self._store.kill()
        await asyncio.sleep(self._dice.uniform(0.0, 0.3))
        await self._store.start()

    async def pause_replicas(self, clients, *, pauses, longest_seconds):
        """Stop replicas for a while, one at a time, while others serve their sessions; then let them go on."""
        for _ in range(pauses):
            await asyncio.sleep(self._dice.uniform(0.02, self._pause_seconds))
            self._check(clients)
            zombie = self._dice.choice(self._replicas.serving)
            zombie.pause()
            await asyncio.sleep(self._dice.uniform(0.05, longest_seconds))
            zombie.resume()

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

    async def heal(self):
        """Wait until all that was broken is whole."""
        await asyncio.gather(*self._healing)

    def _check(self, clients):
        """Raise what went wrong with the tests themselves."""
        clients.check()
        self._check_healing()

    def _check_healing(self):
        for task in self._healing:
            if task.done():
                task.result()

    def _heal(self, work):
        self._healing.append(asyncio.create_task(work))
