"""horovodrun's --config-file: options in YAML, as horovodrun.runner.common.util.config_parser names them. Read by PyYAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refused(Exception):
    """The file cannot be used; str() says why."""


# Section, then key: the option. A flag has two: for true, for false.
_Option = str | tuple[str, str]
_SECTIONS: dict[str, dict[str, _Option]] = {
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb", "cycle_time_ms": "--cycle-time-ms", "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        "hierarchical_allgather": ("--hierarchical-allgather", "--no-hierarchical-allgather"),
        "torus_allreduce": ("--torus-allreduce", "--no-torus-allreduce")},
    "autotune": {
        "enabled": ("--autotune", "--no-autotune"), "log_file": "--autotune-log-file", "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample", "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise"},
    "timeline": {
        "filename": "--timeline-filename", "mark_cycles": ("--timeline-mark-cycles", "--no-timeline-mark-cycles")},
    "stall_check": {
        "enabled": ("--stall-check", "--no-stall-check"), "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds"},
    "library_options": {
        "mpi_threads_disable": ("--mpi-threads-disable", "--no-mpi-threads-disable"), "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity", "gloo_timeout_seconds": "--gloo-timeout-seconds"},
    "logging": {
        "level": "--log-level", "with_timestamp": ("--log-with-timestamp", ""), "hide_timestamp": ("--log-hide-timestamp", "")}}


def _load(path: str) -> Any:
    try:
        import yaml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise Refused(f"--config-file {path} needs PyYAML, which is not installed: pip install pyyaml, or give its values as "
                      "options") from None
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except OSError as error:
        raise Refused(f"--config-file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"--config-file {path} is not YAML: {' '.join(str(error).split())}") from None


def read(path: str) -> list[str]:
    """The file's options as words of horovodrun. Raises Refused."""
    sections = _load(path)
    words: list[str] = []
    for section, values in _mapping(path, "the file", sections).items():
        known = _SECTIONS.get(section)
        if known is None:
            raise Refused(f"--config-file {path}: '{section}' is none of {', '.join(_SECTIONS)}")
        for key, value in _mapping(path, f"'{section}'", values).items():
            if (option := known.get(key)) is None:
                raise Refused(f"--config-file {path}: '{key}' in '{section}' is none of {', '.join(known)}")
            words += _words(path, f"'{key}' in '{section}'", option, value)
    return words


def _mapping(path: str, what: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"--config-file {path}: {what} has no keys, but {value!r}")
    return value


def _words(path: str, what: str, option: _Option, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(option, tuple):
        if not isinstance(value, bool):
            raise Refused(f"--config-file {path}: {what} is {value!r}, neither true nor false")
        chosen = option[0 if value else 1]
        return [chosen] if chosen else []
    if isinstance(value, (bool, dict, list)):
        raise Refused(f"--config-file {path}: {what} is {value!r}, not one value")
    return [f"{option}={value}"]
