"""Builds the compiled modules where there is a C compiler; elsewhere Python does the same in ten times the time.

All else about the package stands in pyproject.toml.
"""

import sysconfig

from setuptools import Extension, setup

# One build for every Python from 3.11 on, but for those without a global lock, which have no stable interface yet.
IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            f"dippm.{package}.{name}",
            [f"src/dippm/{package}/{name}.c"],
            depends=["src/dippm/costs/_buffers.h"],
            # MSVC does not know it, and says so.
            extra_compile_args=["-O3"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else [],
            py_limited_api=IS_STABLE,
            optional=True,
        )
        for package, name in (
            ("costs", "_autocast"),
            ("costs", "_loops"),
            ("costs", "_numbering"),
            ("costs", "_replay"),
            ("predictors", "_network"),
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)
