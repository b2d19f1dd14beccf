"""The systems of this repository at one address, as `make up` runs them. Add your system to the list."""

from collections.abc import Sequence
from typing import Final

from systems.host.site import site_of
from systems.host.system import System
from systems.investigations.system import investigations
from systems.tasks.system import tasks

SYSTEMS: Final[Sequence[System]] = (investigations, tasks)

application: Final = site_of(SYSTEMS)
