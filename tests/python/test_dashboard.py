"""The Grafana dashboard against Grafana's own schema, from which grafana-foundation-sdk is generated."""

import json
from pathlib import Path

import pytest

dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="grafana-foundation-sdk is not installed")
encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")

ROOT = Path(__file__).resolve().parents[2]


def kept(given, read, place=""):
    """Fails where a part of a JSON value is missing in what the schema made of it."""
    if isinstance(given, dict):
        assert isinstance(read, dict), place
        for name, value in given.items():
            assert name in read or value is None, f"the schema has no {place}/{name}"
            if value is not None:
                kept(value, read[name], f"{place}/{name}")
    elif isinstance(given, list):
        assert isinstance(read, list) and len(given) == len(read), place
        for number, (one, other) in enumerate(zip(given, read)):
            kept(one, other, f"{place}[{number}]")
    else:
        assert given == read, place


def read_by_grafana(given):
    plugins.register_default_plugins()
    return json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(given)))


def test_grafana_knows_all_that_the_dashboard_says():
    given = json.loads((ROOT / "contrib" / "grafana" / "libddp.json").read_text())
    kept(given, read_by_grafana(given))


def test_what_grafana_does_not_know_is_noticed():
    given = json.loads((ROOT / "contrib" / "grafana" / "libddp.json").read_text())
    given["panels"][0]["fieldConfig"]["defaults"]["unti"] = "s"
    with pytest.raises(AssertionError, match="no /panels.0./fieldConfig/defaults/unti"):
        kept(given, read_by_grafana(given))
