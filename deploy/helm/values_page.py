"""Prints eps/README.md: the values of the chart, from their schema and values.yaml.

    python3 deploy/helm/values_page.py > deploy/helm/eps/README.md

Needs the package python3-yaml of Debian."""

import json
import pathlib

import yaml

CHART = pathlib.Path(__file__).resolve().parent / "eps"
BEGIN = """# Values of the chart

`values_page.py` makes this page from `values.schema.json` and `values.yaml`. A value that is not
listed is refused. [docs/guides/kubernetes.md](../../../docs/guides/kubernetes.md) shows how to
install the chart.

| value | default | meaning |
| --- | --- | --- |"""


def default_of(value):
    if isinstance(value, str) and "\n" in value:
        return "a text"
    if isinstance(value, dict) and any("\n" in str(each) for each in value.values()):
        return ", ".join(f"`{name}`" for name in value)
    return f"`{json.dumps(value)}`"


def kinds_of(schema):
    """Returns a sentence on the values that are allowed, or nothing."""
    if "enum" in schema:
        return " One of " + ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"]) + "."
    if schema.get("properties") and schema.get("additionalProperties") is False:
        return " Keys: " + ", ".join(f"`{key}`" for key in schema["properties"]) + "."
    return ""


def rows(schema, values, name):
    """Yields the rows below a value. A map whose default lacks some of its keys is one row."""
    for key, child in schema["properties"].items():
        path = f"{name}.{key}" if name else key
        if key == "global":  # belongs to Helm
            continue
        value = values[key]
        inner = child.get("properties", {})
        if inner and isinstance(value, dict) and set(value) == set(inner) and key != "resources":
            yield f"| `{path}` | | {child['description']} |"
            yield from rows(child, value, path)
        else:
            yield (f"| `{path}` | {default_of(value)} | "
                   f"{child['description']}{kinds_of(child)} |")


def page():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return "\n".join([BEGIN, *rows(schema, values, "")]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
