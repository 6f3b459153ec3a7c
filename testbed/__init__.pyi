# Types of the names that `__init__.py` loads when they are used.
from testbed.library import BadInput as BadInput
from testbed.library import DemoConfig as DemoConfig
from testbed.library import Run as Run
from testbed.library import RunConfig as RunConfig
from testbed.library import ServeConfig as ServeConfig
from testbed.library import SweepConfig as SweepConfig
from testbed.library import TestbedError as TestbedError
from testbed.library import load as load
from testbed.library import plot as plot
from testbed.library import run as run
from testbed.library import sweep as sweep

__version__: str
LIBRARY: tuple[str, ...]
