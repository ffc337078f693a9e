# Spack recipe of libddp: in your own repository, as packages/libddp/package.py beside the release archive, `spack install
# --no-checksum libddp`; in a checkout, `spack dev-build libddp@main`.

import os

from spack.package import *

try:  # Spack 1.0 and newer
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
except ImportError:
    pass


class Libddp(CMakePackage):
    """Launcher and C++ library for data-parallel training jobs under Slurm and PMIx: wire-up,
    topology-aware placement, collectives and overlapped averaging of gradients."""

    url = "file://{0}/libddp-0.1.0.tar.gz".format(os.getcwd())
    manual_download = True

    license("Apache-2.0")

    version("main")
    version("0.1.0")

    variant("slurm_plugin", default=False, description="Build the SPANK plugin for srun")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("pmix@4.2:")
    depends_on("hwloc@2.5:")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10:")
    depends_on("cli11@2.2:")
    depends_on("nlohmann-json@3.11:")
    depends_on("pugixml@1.12:")
    depends_on("libsodium@1.0.18:")
    # Slurm loads only SPANK plugins built for its major release.
    depends_on("slurm", when="+slurm_plugin")

    conflicts("%gcc@:11", msg="libddp needs GCC 12's C++20")
    conflicts("platform=darwin", msg="libddp supports Linux only")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("DDP_BUILD_TESTS", False),
            self.define("DDP_WARNINGS_AS_ERRORS", False),
            self.define_from_variant("DDP_BUILD_SLURM_PLUGIN", "slurm_plugin"),
        ]
