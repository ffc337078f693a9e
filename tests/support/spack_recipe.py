#!/usr/bin/env python3
"""Executes Spack's recipe without Spack, which Debian and PyPI do not have: stand-ins for what it imports take each directive,
refuse what Spack would, and give its CMake options.

    spack_recipe.py PACKAGE_PY VERSION [+VARIANT|~VARIANT]...

Prints CMake's options, a line each.
"""

import re
import sys
import types

SPEC = re.compile(r"[a-z0-9][a-z0-9_-]*(@[\w.,:-]+)?([+~]\w+)*$")  # name@versions+variant
BUILD_TIME = {"build", "link", "run", "test"}


class Recipe:
    """What the directives of the class body said."""

    def __init__(self):
        self.versions, self.variants, self.dependencies, self.licenses, self.generators = [], {}, {}, [], []

    def version(self, name, sha256=None, branch=None, **other):
        assert re.fullmatch(r"main|\d+(\.\d+)+", name) and not other, (name, other)
        self.versions.append(name)

    def variant(self, name, default, description):
        assert isinstance(default, bool) and description
        self.variants[name] = default

    def depends_on(self, spec, when=None, type=("build", "link")):
        assert SPEC.match(spec), spec
        kinds = {type} if isinstance(type, str) else set(type)
        assert kinds <= BUILD_TIME, kinds
        if when is not None:
            assert when.lstrip("+~") in self.variants, f"{spec} depends on the variant {when}, which there is not"
        self.dependencies[spec.split("@")[0]] = when

    def conflicts(self, spec, when=None, msg=None):
        assert spec and msg

    def license(self, name):
        self.licenses.append(name)

    def generator(self, *names):
        assert set(names) <= {"ninja", "make"}
        self.generators.extend(names)


def execute(path, wanted):
    recipe = Recipe()

    class CMakePackage:
        def __init__(self, variants):
            self.chosen = variants

        def define(self, name, value):
            kind, text = ("BOOL", "ON" if value else "OFF") if isinstance(value, bool) else ("STRING", str(value))
            return f"-D{name}:{kind}={text}"

        def define_from_variant(self, name, variant=None):
            return self.define(name, self.chosen[variant or name.lower()])

    # Since 1.0 Spack has the classes of build systems apart.
    core = types.ModuleType("spack.package")
    for name in ("version", "variant", "depends_on", "conflicts", "license"):
        setattr(core, name, getattr(recipe, name))
    cmake = types.ModuleType("spack_repo.builtin.build_systems.cmake")
    cmake.CMakePackage, cmake.generator = CMakePackage, recipe.generator
    modules = {"spack": types.ModuleType("spack"), "spack.package": core}
    for depth in (1, 2, 3):
        name = ".".join(cmake.__name__.split(".")[:depth])
        modules[name] = types.ModuleType(name)
    modules[cmake.__name__] = cmake
    sys.modules.update(modules)
    scope = {}
    exec(compile(open(path).read(), path, "exec"), scope)
    (kind,) = [value for value in scope.values() if isinstance(value, type) and value.__module__ != __name__ and
               issubclass(value, CMakePackage) and value is not CMakePackage]
    chosen = dict(recipe.variants)
    for word in wanted:
        assert word[1:] in chosen, f"no variant {word[1:]}"
        chosen[word[1:]] = word[0] == "+"
    return recipe, kind, kind(chosen)


def main(path, version, *wanted):
    recipe, kind, package = execute(path, wanted)
    assert kind.__name__ == "Libddp" and kind.__doc__ and kind.url.startswith("file://")
    assert version in recipe.versions and version in kind.url, (version, recipe.versions, kind.url)
    assert recipe.licenses == ["Apache-2.0"] and recipe.generators == ["ninja"]
    print("\n".join(package.cmake_args()))


if __name__ == "__main__":
    main(*sys.argv[1:])
