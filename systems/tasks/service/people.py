"""Users and roles, and who may change them.

Changes run one at a time, under a lock on the administrators' role. A user who loses a role gets no event through it
that commits afterwards: the change waits for transactions that have read the membership, and later ones wait for it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from aftercommit.postgres import committed
from systems.host.http import Connection, changing
from systems.tasks.service.errors import LastAdministrator, NoSuchPlace, NotAdministrator, Stranger

ADMINISTRATORS: Final = 1


@dataclass(frozen=True, slots=True)
class Role:
    """A role."""

    role_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Person:
    """A user with their roles, ordered by number."""

    user_id: int
    name: str
    roles: list[Role]


@dataclass(frozen=True, slots=True)
class People:
    """Users by number. `next_after` continues the list; null: there are no more."""

    users: list[Person]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class RoleMembers:
    """A role and its members."""

    role_id: int
    name: str
    user_ids: list[int]


@dataclass(frozen=True, slots=True)
class Roles:
    """All roles by number."""

    roles: list[RoleMembers]


_SOME: Final = """
    select person.user_id, person.name,
           coalesce(json_agg(json_build_object('role_id', role.role_id, 'name', role.name) order by role.role_id)
                    filter (where role.role_id is not null), '[]')
    from (select * from tasks.users where user_id > %(after)s order by user_id limit %(limit)s) person
    left join tasks.members member on member.user_id = person.user_id
    left join tasks.roles role on role.role_id = member.role_id
    group by person.user_id, person.name order by person.user_id
"""
_ROLES: Final = """
    select role.role_id, role.name, array_remove(array_agg(member.user_id order by member.user_id), null)
    from tasks.roles role left join tasks.members member on member.role_id = role.role_id
    group by role.role_id, role.name order by role.role_id
"""
_NAMES: Final = "select user_id, name from tasks.users where user_id = any(%s)"
_ADD_USER: Final = "insert into tasks.users (user_id, name) values (%s, %s) on conflict do nothing"
_ADD_ROLE: Final = "insert into tasks.roles (role_id, name) values (%s, %s) on conflict do nothing"
# This lock mode still lets new tasks refer to the role.
_ONE_AT_A_TIME: Final = "select role_id from tasks.roles where role_id = 1 for no key update"
_ADMINISTRATORS: Final = "select user_id from tasks.members where role_id = 1"
_ADD_MEMBER: Final = "insert into tasks.members (role_id, user_id) values (%s, %s) on conflict do nothing"
# Queues behind current readers of memberships and before later ones; with row locks, later readers would go first.
_ALONE: Final = "lock table tasks.members in exclusive mode"
_REMOVE_MEMBER: Final = "delete from tasks.members where role_id = %s and user_id = %s"
_ROLE: Final = "select role_id from tasks.roles where role_id = %s"


async def find_person(connection: Connection, user_id: int) -> Person:
    """The user with this number; raises Stranger if there is none."""
    found = await list_people(connection, after=user_id - 1, limit=1)
    if not found.users or found.users[0].user_id != user_id:
        raise Stranger.to_all(user_id)
    return found.users[0]


async def list_people(connection: Connection, *, after: int, limit: int) -> People:
    """Up to `limit` users after a number."""
    rows = await (await connection.execute(_SOME, {"after": after, "limit": limit})).fetchall()
    users = [Person(user_id, name, [Role(**role) for role in roles]) for user_id, name, roles in rows]
    return People(users, users[-1].user_id if len(users) == limit else None)


async def list_roles(connection: Connection) -> Roles:
    """All roles with their members."""
    rows = await (await connection.execute(_ROLES)).fetchall()
    return Roles([RoleMembers(*row) for row in rows])


async def names_of(connection: Connection, user_ids: Collection[int]) -> dict[int, str]:
    """Names of the users that exist, by number."""
    rows = await (await connection.execute(_NAMES, (list(user_ids),))).fetchall()
    return dict(rows)


async def add_member(connection: Connection, administrator: int, role_id: int, user_id: int) -> Person:
    """Give a user a role. Does nothing if they have it."""
    async with changing(connection):
        await _begin(connection, administrator, role_id, user_id)
        await connection.execute(_ADD_MEMBER, (role_id, user_id))
        return await find_person(connection, user_id)


async def remove_member(connection: Connection, administrator: int, role_id: int, user_id: int) -> Person:
    """Take a role from a user. Does nothing if they do not have it. Waits for transactions that read it."""
    async with changing(connection):
        administrators = await _begin(connection, administrator, role_id, user_id)
        if role_id == ADMINISTRATORS and administrators == {user_id}:
            raise LastAdministrator(user_id)
        await connection.execute(_ALONE)
        await connection.execute(_REMOVE_MEMBER, (role_id, user_id))
        return await find_person(connection, user_id)


async def _begin(connection: Connection, administrator: int, role_id: int, user_id: int) -> set[int]:
    """Lock memberships until the end of the transaction, and return the administrators."""
    await connection.execute(_ONE_AT_A_TIME)
    rows = await (await connection.execute(_ADMINISTRATORS)).fetchall()
    administrators = {user for (user,) in rows}
    if administrator not in administrators:
        raise NotAdministrator(administrator)
    if await (await connection.execute(_ROLE, (role_id,))).fetchone() is None:
        raise NoSuchPlace("role", role_id)
    if not await names_of(connection, [user_id]):
        raise NoSuchPlace("user", user_id)
    return administrators


def add_people(
    connection: psycopg.Connection[Any],
    roles: Mapping[int, str],
    users: Mapping[int, tuple[str, Collection[int]]],
) -> None:
    """Add roles, and users with their roles. Existing ones stay as they are."""
    with committed(connection):
        for role_id, role_name in roles.items():
            connection.execute(_ADD_ROLE, (role_id, role_name))
        for user_id, (name, role_ids) in users.items():
            if connection.execute(_ADD_USER, (user_id, name)).rowcount:
                for role_id in role_ids:
                    connection.execute(_ADD_MEMBER, (role_id, user_id))
