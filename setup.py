"""Builds the one compiled module where there is a C compiler; elsewhere Python does the same in ten times the time.

All else about the package stands in pyproject.toml.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("dippm.costs._replay", ["src/dippm/costs/_replay.c"], py_limited_api=True, optional=True),
    ],
    # One build for every Python from 3.11 on.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
