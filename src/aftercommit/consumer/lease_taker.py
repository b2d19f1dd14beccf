"""Takes the leases of a worker's consumers, and gives lanes to workers that have too few."""

from collections.abc import Awaitable, Callable, Mapping

from aftercommit.consumer.lease import Leases
from aftercommit.consumer.log_follower import LogFollower
from aftercommit.consumer.names import Standby
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.shape import Shape


class LeaseTaker:
    """The leases that a worker holds and should hold. `followers`: of each consumer, one for every lane."""

    def __init__(
        self,
        shape: Shape,
        leases: Leases,
        followers: Mapping[str, list[LogFollower]],
        reach: Callable[..., Awaitable[None]],
    ) -> None:
        self._leases = leases
        self._followers = followers
        self._reach = reach
        self._standby = Standby(shape)

    async def take(self, control: AsyncConnection) -> None:
        """Take the leases that are free; of a divided consumer a fair share, and give away lanes beyond it.

        For the others, see that the workers that have them run the same consumers.
        """
        shares = await self._leases.share(control)
        for name, share in shares.items():
            await self._give_away(control, name, share)
        missing = {each.name: each for group in self._followers.values() for each in group if not each.active}
        if not missing:
            return
        room = {name: share - len(_active(self._followers[name])) for name, share in shares.items()}
        taken = await self._leases.take(control, list(missing), room)
        for name, held in taken.items():
            self._standby.over(missing[name].consumer.name)
            missing[name].start(held)
            await self._reach("consumer.active", position=held.position, died=held.died)
        if standing_by := [group[0].consumer for group in self._followers.values() if not _active(group)]:
            await self._standby.look(control, standing_by)
            for _ in standing_by:
                await self._reach("consumer.standing_by")

    async def _give_away(self, control: AsyncConnection, name: str, share: int) -> None:
        """Hand over the lanes beyond our share: those at rest now, the others when their slice has ended."""
        held = sorted(_active(self._followers[name]), key=lambda each: (each.task is None, each.leaving))
        for each in held[:share]:
            each.leave(leaving=False)
        for each in held[share:]:
            each.leave()
        given = [each for each in held[share:] if each.task is None]
        if given:
            await self._leases.hand_over(control, [each.name for each in given])
            for each in given:
                await each.forget()
            await self._reach("consumer.handed_over", lanes=len(given))


def _active(group: list[LogFollower]) -> list[LogFollower]:
    return [each for each in group if each.active]
