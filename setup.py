"""Finds the packages: those below fredsim, and three folders at the top level that are imported below it.

Editors and type checkers read the links fredsim/servers, fredsim/dispatchers and fredsim/experiments instead, which a
source distribution does not have.
"""

from setuptools import find_packages, setup

TOP = ("servers", "dispatchers", "experiments")

below = {f"fredsim.{name}" for name in TOP}
below |= {f"fredsim.{top}.{name}" for top in TOP for name in find_packages(top)}
setup(
    packages=sorted({"fredsim", *(f"fredsim.{name}" for name in find_packages("fredsim"))} | below),
    package_dir={f"fredsim.{name}": name for name in TOP},
)
